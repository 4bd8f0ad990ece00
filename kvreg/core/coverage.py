"""What select says of every device, mode and head size; no rule of its own, so that no cell can differ from select.

A cell is the answer to the request of that device, mode and head size with everything else assumed, interpreted
evidence allowed: `measured`, `compiled`, `interpreted` or `refused`, the last with the leading reason's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvreg.core.asking import make_request
from kvreg.core.decisions import leading
from kvreg.core.devices import Device, Resolution
from kvreg.core.environment import Environment
from kvreg.core.evidence import Tier
from kvreg.core.index import Index
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.select import select
from kvreg.core.selections import ModeResult

HEAD_SIZES = (40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512)
"""Those of the models in use, rotation blocks of 8 to 512 among them: what a validation tries unless it is told."""

REFUSED = "refused"
STATUSES = (*(tier.value for tier in (Tier.MEASURED, Tier.COMPILED, Tier.INTERPRETED)), REFUSED)
"""What a cell can be, the strongest first."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer."""

    device: str
    platform: str
    arch: str
    mode: Mode
    head_size: int
    status: str
    """One of STATUSES."""
    evidence_of: str | None
    """The device that decode's numbers were taken on; None where it is refused."""
    code: str | None
    """Code of the leading reason of a refusal."""
    reason: str | None
    """Its one line: what is required, what was found, and the remedy."""

    @property
    def label(self) -> str:
        """The status, a refusal with its code."""
        return f"{self.status}: {self.code}" if self.code else self.status


def cells(
    devices: Iterable[Device],
    modes: Sequence[Mode],
    head_sizes: Sequence[int],
    environment: Environment,
    index: Index,
) -> Iterator[Cell]:
    """Yield a cell for each device, mode and head size, in that order; `index` is best a Snapshot."""
    for device in devices:
        found: dict[tuple[Mode, int], ModeResult] = {}
        for size in head_sizes:
            request = make_request(device.key, modes[0] if len(modes) == 1 else None, size)
            answer = select(request, Resolution(device, "key"), environment, (Tier.INTERPRETED.value,), index)
            found |= {(result.mode, size): result for result in answer.results}
        for mode in modes:
            for size in head_sizes:
                yield _cell(device, size, found[mode, size])


def _cell(device: Device, head_size: int, result: ModeResult) -> Cell:
    reason = leading(result.decisions) if result.tier is None else None
    return Cell(
        device=device.key,
        platform=device.platform,
        arch=device.arch,
        mode=result.mode,
        head_size=head_size,
        status=REFUSED if result.tier is None else result.tier.value,
        evidence_of=None if result.tier is None else result.ops[Op.DECODE].evidence.device,
        code=reason.code if reason else None,
        reason=str(reason) if reason else None,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Devices of one arch whose cells are alike in every mode and head size."""

    platform: str
    arch: str
    devices: tuple[str, ...]
    labels: Mapping[Mode, tuple[str, ...]]
    """Mode -> a label for each head size."""


def rows(found: Iterable[Cell], modes: Sequence[Mode]) -> list[Row]:
    """Return the cells with devices that are alike joined, in the order in which they first come."""
    joined: dict[tuple[str, str, tuple[tuple[str, ...], ...]], list[str]] = {}
    for (device, platform, arch), own in groupby(found, lambda cell: (cell.device, cell.platform, cell.arch)):
        by_mode: dict[Mode, list[str]] = {mode: [] for mode in modes}
        for cell in own:
            by_mode[cell.mode].append(cell.label)
        labels = tuple(tuple(by_mode[mode]) for mode in modes)
        joined.setdefault((platform, arch, labels), []).append(device)
    return [
        Row(platform, arch, tuple(devices), dict(zip(modes, labels, strict=True)))
        for (platform, arch, labels), devices in joined.items()
    ]


def summary(labels: Sequence[str], head_sizes: Sequence[int]) -> str:
    """Return labels in few words: `measured`, or `compiled 64 96 128 256, else refused: compile`."""
    ordered = [label for label, _ in Counter(labels).most_common()]
    if len(ordered) == 1:
        return ordered[0]
    *others, commonest = sorted(ordered, key=lambda label: (label == ordered[0], _rank(label)))
    named = [
        f"{label} {' '.join(str(size) for size, each in zip(head_sizes, labels, strict=True) if each == label)}"
        for label in others
    ]
    return f"{', '.join(named)}, else {commonest}"


def counts(found: Iterable[Cell]) -> dict[str, int]:
    """Return how many cells have each status."""
    counted = Counter(cell.status for cell in found)
    return {status: counted[status] for status in STATUSES}


def _rank(label: str) -> int:
    return STATUSES.index(label) if label in STATUSES else len(STATUSES)
