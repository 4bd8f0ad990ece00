"""The stages `probe`, `compile`, `gate` and `seeds` of `ci/gpu`: is the device there, and are its kernels right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from kvreg.validation.cells import Cell
from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import FAILED, OK, SKIPPED


def probe(rig: Rig) -> tuple[str, str]:
    """Ask the device who it is."""
    probed = rig.run.probe()
    rig.session.results |= {
        "device": rig.machine.device.key,
        "numerics": rig.machine.numerics,
        "versions": dict(rig.run.versions),
        "probed": dict(probed),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return OK, f"{probed['card']}, torch {probed['torch']}, Triton {probed['triton']}"


def build(rig: Rig) -> tuple[str, str]:
    """Compile everything in parallel processes."""
    if not rig.machine.is_card:
        return SKIPPED, "nothing is compiled without a card"
    rig.run.cells = (*rig.grid, *rig.many())
    rig.run.compile(rig.options.processes)
    return OK, ""


def gate(rig: Rig) -> tuple[str, str]:
    """Judge the grid with three seeds."""
    return _judge(rig, rig.grid)


def seeds(rig: Rig) -> tuple[str, str]:
    """Judge 200 sequences of one batch, a seed each."""
    return _judge(rig, rig.many())


def _judge(rig: Rig, cells: Sequence[Cell]) -> tuple[str, str]:
    rig.run.cells = tuple(cells)
    rig.run.judge()
    wrong_ones = sum(1 for each in rig.run.verdicts() for _ in each.failed)
    return (FAILED if wrong_ones else OK), f"{len(cells)} cells, {wrong_ones} failed"
