"""The model of costs: its parts move as the hardware would move them. What it says of a card nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvreg.core import resolve
from kvreg.core.buckets import Bucket
from kvreg.core.errors import Refused
from kvreg_tuning import costs
from kvreg_tuning.choosing import choose
from kvreg_tuning.outcomes import Result, Trial
from kvreg_tuning.subjects import Subject, text_of

CARD = resolve.resolve("mi300x").device
DECODE = Subject("mi300x", "triton-int4-decode@1", "decode", "int4_per_token_head", 128, 4, 8)
WRITE = replace(DECODE, variant="triton-int4-write@1", op="write")
PREFILL = replace(DECODE, variant="triton-int4-prefill@1", op="prefill")
CONFIG = {"rows": 16, "tile": 64, "num_warps": 2, "num_stages": 2, "programs_per_unit": 4}
READING: dict[str, Any] = {"shared_bytes": 16384, "waves_per_simd": 4, "threads": 128, "code_bytes": 12000}
BUCKET = Bucket(32, 8192)


def estimate(subject: Subject = DECODE, bucket: Bucket = BUCKET, splits: int = 4, **changed: Any) -> costs.Cost:
    config = {**CONFIG, **{name: value for name, value in changed.items() if name in CONFIG}}
    reading = {**READING, **{name: value for name, value in changed.items() if name in READING}}
    return costs.cost(subject, bucket, config, splits, reading, CARD)


def test_nothing_is_faster_than_the_card_reads() -> None:
    rows = 32 * 8192 * 8 * 136

    assert estimate(code_bytes=1).memory_us >= rows / 5.3e12 * 1e6


def test_longer_code_costs_issue_and_no_memory() -> None:
    short, long = estimate(), estimate(code_bytes=24000)

    assert long.issue_us == pytest.approx(2 * (short.issue_us or 0))
    assert long.memory_us == short.memory_us
    assert long.us > short.us
    assert long.bound == "issue"


def test_what_the_compiler_does_not_tell_is_no_part_of_the_estimate() -> None:
    found = estimate(code_bytes=None)

    assert found.issue_us is None
    assert found.bound in ("memory", "matrix")


@pytest.mark.parametrize(
    ("changed", "resident"),
    [({}, 4), ({"shared_bytes": 65536}, 1), ({"shared_bytes": 8192}, 8), ({"waves_per_simd": 1}, 2)],
)
def test_the_scarcest_of_shared_memory_and_registers_limits_programs(changed: dict[str, int], resident: int) -> None:
    assert estimate(**changed).resident == resident


def test_too_few_bytes_in_flight_leave_bandwidth_unused() -> None:
    lone = {"bucket": Bucket(1, 8192), "splits": 1}

    assert estimate(**lone).memory_us > 4 * estimate(bucket=Bucket(1, 8192), splits=32).memory_us
    assert estimate(**lone, tile=16).memory_us > estimate(**lone, tile=64).memory_us


def test_a_last_round_that_is_not_full_costs_a_whole_one() -> None:
    resident = 304 * 4

    assert estimate(bucket=Bucket(resident, 256), splits=1).tail == pytest.approx(1.0)
    full = costs.cost(replace(DECODE, kv_heads=1), Bucket(resident, 256), CONFIG, 1, READING, CARD)
    spilled = costs.cost(replace(DECODE, kv_heads=1), Bucket(resident + 1, 256), CONFIG, 1, READING, CARD)
    assert full.tail == 1.0
    assert spilled.tail == pytest.approx(2.0, rel=0.01)


def test_padding_of_rows_is_paid_in_the_matrix_unit() -> None:
    assert estimate(rows=32).matrix_us == pytest.approx(2 * estimate(rows=16).matrix_us)


def test_a_split_context_pays_for_its_reduction() -> None:
    whole, split = estimate(splits=1, code_bytes=None), estimate(splits=2, code_bytes=None)

    assert split.us - split.memory_us * split.tail > whole.us - whole.memory_us * whole.tail


def test_prefill_reads_half_of_a_causal_context_for_each_block() -> None:
    one = estimate(PREFILL, Bucket(1, 4096), 1, rows=64)
    wider = estimate(PREFILL, Bucket(1, 4096), 1, rows=128)

    assert wider.memory_us < one.memory_us  # the context is read by half as many blocks


def test_a_write_has_no_matrix_part() -> None:
    assert estimate(WRITE, Bucket(8192, 0), 1).matrix_us == 0.0


def test_an_arch_without_a_card_is_refused_with_what_is_missing() -> None:
    with pytest.raises(Refused, match="no compute_units and no memory_bandwidth_gbs"):
        costs.require_facts(resolve.resolve("gfx942").device)


def trial(tile: int, us: float, result: Result = "ok") -> Trial:
    return Trial({"tile": tile}, "b32-c8192", result, us=us)


def chosen(*trials: Trial, issue_us: float | None = 1.0) -> dict[str, int]:
    """Return the config that is chosen of trials, the first of which is the default's."""
    known = {text_of(each.config): replace(estimate(), us=each.us or 0.0, issue_us=issue_us) for each in trials}
    found = choose(DECODE, BUCKET, trials, trials[0].config, known, 0, False)
    assert found.winner is not None
    return dict(found.winner.config)


def test_the_default_is_given_up_for_a_tenth_and_no_less() -> None:
    assert chosen(trial(16, 100.0), trial(32, 91.0)) == {"tile": 16}
    assert chosen(trial(16, 100.0), trial(32, 89.0)) == {"tile": 32}


def test_a_default_that_runs_is_kept_where_the_length_of_the_code_is_unknown() -> None:
    assert chosen(trial(16, 100.0), trial(32, 50.0), issue_us=None) == {"tile": 16}
    assert chosen(trial(16, 100.0, "resource"), trial(32, 200.0), issue_us=None) == {"tile": 32}


def test_what_spills_serves_where_nothing_else_does() -> None:
    assert chosen(trial(16, 100.0, "resource"), trial(32, 50.0, "resource")) == {"tile": 32}
    assert chosen(trial(16, 100.0), trial(32, 50.0, "resource")) == {"tile": 16}
