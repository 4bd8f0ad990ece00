"""What a call of `ci/gpu` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WORKLOAD = "chat"
RACES = 10
"""Of each bucket in the stage tune; the first one counts, the others show how sure it is."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked of one call."""

    device: str | None = None
    interpreter: bool = False
    smoke: bool = False
    stages: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    """Variants that the stages from compile to seeds, timings and traces take; none for all."""
    tuned: tuple[str, ...] = ()
    """Variants that the stages tune and space take, none for all that decode int4."""
    workloads: tuple[str, ...] = (WORKLOAD,)
    """What those are tuned for; see kvreg.validation.gpu.tunable."""
    races: int = RACES
    limit_s: float | None = None
    peer: Path | None = None
    processes: int | None = None
    write: str = "archive"
    """`archive` keeps the traces in the archive, `repo` puts them into the checkout as well."""
    command: str = "ci/gpu"
