"""Build hook: writes the derived index into the wheel as kvreg/_index, so that an installed kvreg reads no YAML.

A trace that was edited, a tuned entry that is broken or a kernel that cannot be hashed stops the build.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class IndexHook(BuildHookInterface[Any]):
    """Adds the index to a standard wheel; an editable install and an sdist have none and read through the cache."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the index in a temporary folder and ask hatchling to include it."""
        if self.target_name != "wheel" or version != "standard":
            return
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "backends"), str(root / "tuning")]
        from kvreg.core.registry import BUILT_IN
        from kvreg.core.shipping import ship

        backends = []
        for target in BUILT_IN.values():
            module, _, attribute = target.partition(":")
            backends.append(getattr(importlib.import_module(module), attribute))
        self._folder = tempfile.TemporaryDirectory()
        place = Path(self._folder.name)
        ship(backends, place, root / "ci" / "expectations.yaml")
        build_data["force_include"][str(place)] = "kvreg/_index"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
