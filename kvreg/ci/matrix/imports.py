"""Which modules a module imports, read from source: nothing is run, and imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath


class Imports:
    """The modules below some folders of a checkout, and what they import of each other."""

    def __init__(self, root: Path, sources: Iterable[str]) -> None:
        """`sources`: folders, relative to `root`, that modules are imported from."""
        self.root = root
        # The longest first: `backends/kvreg_cuda/x.py` is kvreg_cuda.x and not backends.kvreg_cuda.x.
        self.sources = tuple(sorted(sources, key=len, reverse=True))

    def module_of(self, path: str) -> str | None:
        """Return the module that a file of the checkout is; None for what is no module below the sources."""
        pure = PurePosixPath(path)
        if pure.suffix != ".py":
            return None
        for source in self.sources:
            below = pure if source == "." else pure.relative_to(source) if pure.is_relative_to(source) else None
            if below is not None:
                parts = below.parts[:-1] if below.name == "__init__.py" else (*below.parts[:-1], below.stem)
                return ".".join(parts)
        return None

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Module -> its file."""
        found: dict[str, Path] = {}
        for source in self.sources:
            for top in sorted((self.root / source).iterdir()):
                modules = [top] if top.suffix == ".py" else sorted(top.rglob("*.py")) if _is_package(top) else []
                for path in modules:
                    name = self.module_of(path.relative_to(self.root).as_posix())
                    if name:
                        found.setdefault(name, path)
        return found

    def reach(self, modules: Iterable[str]) -> frozenset[str]:
        """Return these modules and all that they import, directly or not, as far as it lies in the checkout."""
        found: set[str] = set()
        waiting = [name for name in modules if name in self.files]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.direct(name)
        return frozenset(found)

    def direct(self, module: str) -> tuple[str, ...]:
        """Return what one module imports, and the packages that it lies in: importing it runs those too."""
        if module not in self._direct:
            wanted = {*_parents(module), *self._named(module)}
            self._direct[module] = tuple(sorted(name for name in wanted if name in self.files and name != module))
        return self._direct[module]

    @cached_property
    def _direct(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _named(self, module: str) -> Iterable[str]:
        path = self.files[module]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from (alias.name, *_parents(alias.name))
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, package)
                yield from (base, *_parents(base), *(f"{base}.{alias.name}" for alias in node.names))


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
