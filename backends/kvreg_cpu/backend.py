"""The host processor as a Backend. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from platform import machine, processor

from kvreg.core.backends import Detected, FolderBackend
from kvreg.core.variants import Variant


class Cpu(FolderBackend):
    """Device `cpu`, served by plain torch; it has no compiler, hence no launch option and nothing to tune."""

    name = platform = "cpu"

    def detect(self) -> Sequence[Detected]:
        """Return the host's processor, which every machine has."""
        return (Detected(platform="cpu", name=processor() or machine(), arch="cpu"),)

    def variants(self) -> Sequence[Variant]:
        """Return the plain torch variants."""
        from kvreg_cpu.variants import variants  # commands that only list devices do without

        return variants()


BACKEND = Cpu(Path(__file__).parent)
