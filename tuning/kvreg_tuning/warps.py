"""How long the SMs of an NVIDIA card take to issue the code of a decode: counts of its machine code, no measurement.

    issue   max(instructions of all warps / (units at work * SLOTS * clock),
                time of one program * programs / (units at work * programs on a unit))
    of one program, once and for each of its tiles:
        HIDING clocks an instruction + shared-memory clocks of all its warps
        + BARRIER_CLOCKS for each barrier, where it has several warps
        + LATENCY_S for each load of the chain page number -> row that nothing hides

The counts are those of kvreg_triton.cross.machine_code. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLOTS = 2.0
"""Instructions of whole warps that an SM begins in a clock: its four schedulers issue one each, but 32-bit integer
adds, shifts and logic, which unpacking consists of, have 64 results a clock (throughput table of the CUDA C++
Programming Guide, compute capability 8.x and 9.0, recalled)."""

BARRIER_CLOCKS = 60.0
"""From the last store before a barrier to the first load behind it, for the warps of one program. An assumption: a
load from shared memory takes 29 clocks on an H100 (arXiv 2402.13499, recalled); a store is taken to last as long."""

CHAIN = 2
"""Loads that wait for each other before a tile is there: the number of its page, then its rows."""


@dataclass(frozen=True, slots=True)
class Code:
    """What one warp of a program issues, once or in each tile."""

    instructions: int
    barriers: int
    shared_clocks: int

    @classmethod
    def of(cls, reading: Mapping[str, Any], part: str) -> Code | None:
        """Read the part `once` or `tile` of a reading; None where the machine code was not read."""
        values = [reading.get(f"{part}_{name}") for name in ("instructions", "barriers", "shared_clocks")]
        return None if any(value is None for value in values) else cls(*values)

    def clocks(self, warps: int, hiding: float) -> float:
        """Return how long a program takes for it while nothing else is in its way."""
        waiting = BARRIER_CLOCKS * self.barriers if warps > 1 else 0.0
        return hiding * self.instructions + warps * self.shared_clocks + waiting


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a launch and where they run."""

    count: int
    tiles: float
    """Of all programs."""
    warps: int
    """Of one program."""
    units_at_work: int
    on_unit: int
    """Programs on a unit at a time."""
    num_stages: int


def issue_s(
    reading: Mapping[str, Any], programs: Programs, *, clock_hz: float, latency_s: float, hiding: float
) -> float | None:
    """Return the seconds that issuing takes; None where the machine code was not read."""
    once, tile = Code.of(reading, "once"), Code.of(reading, "tile")
    if once is None or tile is None:
        return None
    instructions = (programs.count * once.instructions + programs.tiles * tile.instructions) * programs.warps
    throughput = instructions / (programs.units_at_work * SLOTS * clock_hz)
    tiles = programs.tiles / programs.count
    clocks = once.clocks(programs.warps, hiding) + tiles * tile.clocks(programs.warps, hiding)
    # A pipeline of n stages has the loads of n - 1 tiles under way; the first tile hides behind nothing.
    exposed = CHAIN + max(0.0, tiles - 1) * max(0, CHAIN - (programs.num_stages - 1))
    alone = clocks / clock_hz + exposed * latency_s
    return max(throughput, alone * programs.count / (programs.units_at_work * programs.on_unit))
