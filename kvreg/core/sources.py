"""Where the source text of a module lies, found without importing it or a package around it."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path


def source_file(module: str) -> Path | None:
    """Return the .py file of a module (a package's __init__.py); None when it has no source."""
    search: list[str] | None = None
    spec = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def package_files(module: str) -> list[str]:
    """Return the path of every .py file of the top-level package that a module lies in, sorted.

    As texts: a start from a checkout looks at hundreds, and a Path costs as much as the look.
    """
    origin = source_file(module.partition(".")[0])
    if origin is None:
        return []
    if origin.name != "__init__.py":
        return [str(origin)]
    walked = os.walk(origin.parent)
    return sorted(os.path.join(folder, name) for folder, _, names in walked for name in names if name.endswith(".py"))
