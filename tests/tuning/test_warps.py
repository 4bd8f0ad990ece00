"""The model of issuing on NVIDIA: each part moves as the hardware would move it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvreg_tuning.warps import Programs, issue_s

READING: dict[str, Any] = {
    "once_instructions": 3000,
    "once_barriers": 12,
    "once_shared_clocks": 600,
    "tile_instructions": 1100,
    "tile_barriers": 4,
    "tile_shared_clocks": 120,
}
LAUNCH = Programs(count=1024, tiles=1024 * 32, warps=1, units_at_work=132, on_unit=8, num_stages=3)
ALONE = Programs(count=132, tiles=132 * 32, warps=1, units_at_work=132, on_unit=1, num_stages=3)


def issue(programs: Programs = LAUNCH, **changed: Any) -> float:
    found = issue_s({**READING, **changed}, programs, clock_hz=2e9, latency_s=0.8e-6, hiding=2.0)
    assert found is not None
    return found


def test_a_full_unit_issues_two_instructions_a_clock() -> None:
    instructions = 1024 * (3000 + 32 * 1100)

    assert issue(replace(LAUNCH, on_unit=32)) == pytest.approx(instructions / (132 * 2 * 2e9))


def test_what_runs_once_weighs_more_where_a_program_has_few_tiles() -> None:
    few = replace(LAUNCH, tiles=1024 * 2)

    assert issue(few, once_instructions=6000) / issue(few) > issue(once_instructions=6000) / issue()


def test_barriers_cost_nothing_within_one_warp() -> None:
    assert issue(ALONE, tile_barriers=40) == issue(ALONE)
    two = replace(ALONE, warps=2)
    assert issue(two, tile_barriers=40) > issue(two)


def test_a_pipeline_hides_the_loads_that_it_begins_ahead() -> None:
    times = [issue(replace(ALONE, num_stages=stages)) for stages in (1, 2, 3, 4)]

    assert times[0] - times[1] == pytest.approx(31 * 0.8e-6)
    assert times[1] - times[2] == pytest.approx(31 * 0.8e-6)
    assert times[2] == times[3]


def test_warps_of_a_program_share_the_banks_of_shared_memory() -> None:
    one, four = (issue(replace(ALONE, warps=warps), tile_shared_clocks=920) for warps in (1, 4))

    assert four - issue(replace(ALONE, warps=4)) == pytest.approx(4 * (one - issue(ALONE)))


def test_without_machine_code_nothing_is_said() -> None:
    assert issue_s({}, LAUNCH, clock_hz=2e9, latency_s=0.8e-6, hiding=2.0) is None
