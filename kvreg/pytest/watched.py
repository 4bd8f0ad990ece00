"""Replacing functions of torch and numpy in whatever module imports them later, without importing either.

A suite that compares nothing with torch must not pay for it, and `from torch.testing import assert_close` binds the
function when a test module is imported; so each module is changed right after it was loaded, by an import hook.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Replace = Callable[[str, str, Any], Any]
"""(module, name, function) -> what stands in its place."""


class Watch(MetaPathFinder):
    """Replaces the named functions of the named modules, now where they are loaded and else after loading."""

    def __init__(self, targets: dict[str, tuple[str, ...]], replace: Replace) -> None:
        self._targets = targets
        self._replace = replace
        self._finding: set[str] = set()
        self._undo: list[tuple[ModuleType, str, Any]] = []

    def install(self) -> None:
        """Start watching imports."""
        sys.meta_path.insert(0, self)
        for name in self._targets:
            if name in sys.modules:
                self._changed(sys.modules[name])

    def remove(self) -> None:
        """Stop watching and put the functions back."""
        sys.meta_path.remove(self)
        while self._undo:
            module, name, original = self._undo.pop()
            setattr(module, name, original)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that calls back."""
        if fullname not in self._targets or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._changed)
        return spec

    def _changed(self, module: ModuleType) -> None:
        for name in self._targets[module.__name__]:
            original = getattr(module, name, None)
            if original is not None:
                self._undo.append((module, name, original))
                setattr(module, name, self._replace(module.__name__, name, original))


class _Then(Loader):
    """A loader that does what another does, then calls back."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the other loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then call back."""
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
