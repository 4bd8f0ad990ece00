"""The host processor as a Backend. Importing it loads no torch.

Its launch parameters are the working sets of one step: token rows of a write, score elements of an attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from platform import machine, processor

from kvreg.core.backends import Detected, FolderBackend
from kvreg.core.devices import Device
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant

ROWS = tuple(1 << power for power in range(4, 15))
SCORES = tuple(1 << power for power in range(14, 25))
"""Score elements of a step (float32): 64 KiB, a core's own cache, to 64 MiB."""


class Cpu(FolderBackend):
    """Device `cpu`, served by plain torch; it has no compiler, hence no launch option."""

    name = platform = "cpu"

    def detect(self) -> Sequence[Detected]:
        """Return the host's processor, which every machine has."""
        return (Detected(platform="cpu", name=processor() or machine(), arch="cpu"),)

    def variants(self) -> Sequence[Variant]:
        """Return the plain torch variants."""
        from kvreg_cpu.variants import variants  # commands that only list devices do without

        return variants()

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the sizes of a step. A decode has none: the one query row of a sequence is never cut into steps."""
        if variant.op is Op.WRITE:
            return {"rows": ROWS}
        return {"scores": SCORES} if variant.op is Op.PREFILL else {}

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return why a config launches what another one does: its step is larger than all the work."""
        if variant.op is Op.WRITE:
            return _beyond(config["rows"], request.batch, ROWS, "token rows")
        return _beyond(config["scores"], request.group * request.context**2, SCORES, "scores of a head")


def _beyond(step: int, work: int, steps: Sequence[int], what: str) -> str | None:
    """Two steps that both hold all of the work are one launch; the smallest of them is tried."""
    smaller = [each for each in steps if work <= each < step]
    return f"a step of {step} holds all {work} {what}, as one of {smaller[0]} does" if smaller else None


BACKEND = Cpu(Path(__file__).parent)
