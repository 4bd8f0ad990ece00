"""Where the source text of a module lies, found without importing it or a package around it."""

from __future__ import annotations

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


def package_files(module: str) -> list[Path]:
    """Return every .py file of the top-level package that a module lies in, sorted."""
    origin = source_file(module.partition(".")[0])
    if origin is None:
        return []
    return sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
