"""The attention check: e and cosine by their formulas, and everything that needs no reference."""

from __future__ import annotations

import math

import pytest
import torch

from kvreg.core.errors import GateFailed
from kvreg.core.modes import Mode
from kvreg.gate import check_attention, limits, quantization_error, reference_of, run_attention, specimen
from kvreg.gate.attention import row_errors
from kvreg.gate.run import AttentionCall
from kvreg.oracle import Reference
from kvreg.testing import INPUTS, Batch, CacheBytes, Label, build


def reference(out: list[float], spread: float, lse: float = 0.0) -> Reference:
    """One token, one query head."""
    return Reference(
        torch.tensor([[out]], dtype=torch.float64),
        torch.tensor([[lse]], dtype=torch.float64),
        torch.tensor([[spread]], dtype=torch.float64),
    )


def errors(o: list[float], r: list[float], spread: float) -> tuple[float, float]:
    e, cosine = row_errors(torch.tensor([[o]], dtype=torch.float64), reference(r, spread))
    return e.item(), cosine.item()


def test_e_is_the_distance_over_the_larger_of_result_and_spread() -> None:
    assert errors([3.0, 4.5], [3.0, 4.0], 1.0)[0] == pytest.approx(0.5 / 5.0)
    assert errors([3.0, 4.5], [3.0, 4.0], 10.0)[0] == pytest.approx(0.5 / 10.0)


def test_e_does_not_depend_on_the_scale_of_the_values() -> None:
    small = errors([3.0e-9, 4.5e-9], [3.0e-9, 4.0e-9], 1.0e-9)

    assert small[0] == pytest.approx(0.1)


def test_a_result_that_is_zero_must_be_met_exactly() -> None:
    assert errors([0.0, 0.0], [0.0, 0.0], 0.0) == (0.0, 1.0)
    assert errors([0.0, 1e-300], [0.0, 0.0], 0.0)[0] == math.inf


def test_a_result_that_cancelled_to_zero_may_be_off_by_a_share_of_its_spread() -> None:
    assert errors([0.01, 0.0], [0.0, 0.0], 10.0)[0] == pytest.approx(1e-3)


def test_the_cosine_is_that_of_the_angle_and_is_not_taken_where_little_is_left_of_the_result() -> None:
    assert errors([0.0, 1.0], [1.0, 1.0], 0.1)[1] == pytest.approx(math.sqrt(0.5))
    assert errors([-1.0, -1.0], [1.0, 1.0], 0.1)[1] == pytest.approx(-1.0)
    assert errors([0.0, 0.0], [1.0, 1.0], 0.1)[1] < 0.5
    assert errors([-1.0, -1.0], [1.0, 1.0], 100.0)[1] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_an_infinite_error(bad: float) -> None:
    e, cosine = errors([1.0, bad], [1.0, 1.0], 1.0)

    assert e == math.inf
    assert cosine < 0.999


def test_a_reference_that_is_not_finite_demands_the_same_of_the_result() -> None:
    assert errors([math.nan, 1.0], [math.nan, math.nan], math.nan)[0] == 0.0
    assert errors([1.0, 1.0], [math.nan, math.nan], math.nan)[0] == math.inf


@pytest.fixture(scope="module")
def batch() -> Batch:
    return build("mixed", head_size=64, contexts=(1, 17, 40))


@pytest.fixture(scope="module")
def cache(batch: Batch) -> CacheBytes:
    return batch.filled(Mode.INT4_PER_TOKEN_HEAD)


@pytest.fixture(scope="module")
def right(batch: Batch, cache: CacheBytes) -> Reference:
    return reference_of(batch, cache)


def checks(out: torch.Tensor, batch: Batch, right: Reference, lse: torch.Tensor | None = None) -> set[str]:
    report = check_attention(out, right, batch.q_lens, dtype=torch.bfloat16, lse=lse, labels=batch.labels)
    return set(report.checks)


def test_the_rounded_reference_is_green(batch: Batch, right: Reference) -> None:
    assert checks(right.out.bfloat16(), batch, right, right.lse.float()) == set()


def test_a_wrong_shape_or_dtype_is_named_and_not_compared(batch: Batch, right: Reference) -> None:
    assert checks(right.out.bfloat16()[:-1], batch, right) == {"shape"}
    assert checks(right.out.bfloat16().transpose(0, 1), batch, right) == {"shape"}
    assert checks(right.out.half(), batch, right) == {"dtype"}
    assert checks(right.out.bfloat16(), batch, right, right.lse.float()[:, :1]) == {"shape"}


def test_one_wrong_element_of_one_row_is_found_and_placed(batch: Batch, right: Reference) -> None:
    out = right.out.bfloat16()
    row = batch.cu_q_host[9]
    out[row, 5, 3] += 0.2 * float(right.out[row, 5].norm())

    report = check_attention(out, right, batch.q_lens, dtype=torch.bfloat16, labels=batch.labels)

    assert {f.check for f in report.failures} >= {"rel_error"}
    assert all(f.where.startswith("sequence 9 (mixed, planar.1, group 4, ") for f in report.failures)
    assert report.rows[9].max_rel_error > 0.1 > report.rows[8].max_rel_error
    assert report.rows[9].label == batch.labels[9]


def test_hard_inputs_have_twice_the_limit(batch: Batch, right: Reference) -> None:
    out = (right.out * 1.0075).float()

    report = check_attention(out, right, batch.q_lens, dtype=torch.float32, labels=batch.labels)

    kinds = {batch.labels[int(f.where.split()[1])].input for f in report.failures}
    assert kinds == {"normal"}
    assert len(report.failures) == 3


def test_rows_of_no_sequence_must_be_zeros(batch: Batch, right: Reference) -> None:
    out = right.out.bfloat16()
    out[-1, 0, 0] = 1e-30

    report = check_attention(out, right, batch.q_lens, dtype=torch.bfloat16, labels=batch.labels)

    assert {(f.check, f.where) for f in report.failures} >= {("zero", "rows of no sequence")}
    assert len(report.rows) == len(batch.labels)


def test_an_lse_of_a_row_without_keys_must_be_minus_infinity(batch: Batch, right: Reference) -> None:
    lse = right.lse.float()
    lse[-1] = 0.0

    assert checks(right.out.bfloat16(), batch, right, lse) == {"lse"}


def test_class_fast_allows_a_tenth_of_the_quantization_error(batch: Batch, right: Reference) -> None:
    out = (right.out * 1.0125).float()

    exact = check_attention(out, right, batch.q_lens, dtype=torch.float32, labels=batch.labels)
    fast = check_attention(
        out, right, batch.q_lens, dtype=torch.float32, labels=batch.labels, accuracy="fast", quantization_error=0.14
    )

    assert "rel_error" in exact.checks
    assert fast.ok
    with pytest.raises(ValueError, match="quantization error"):
        check_attention(out, right, batch.q_lens, dtype=torch.float32, accuracy="fast")


def test_the_quantization_error_is_that_of_the_mode() -> None:
    batch = build("decode", head_size=128, contexts=(64,), inputs=("normal",), seeds=range(8), padding=0)

    int4 = quantization_error(batch, reference_of(batch, batch.filled(Mode.INT4_PER_TOKEN_HEAD)))
    none = quantization_error(batch, reference_of(batch, batch.filled(Mode.NONE)))

    assert 0.05 < int4 < 0.3
    assert none < 1e-12
    padded = build("decode", head_size=128, contexts=(64,), inputs=("normal",))
    with pytest.raises(ValueError, match="padding=0"):
        quantization_error(padded, reference_of(padded, padded.filled(Mode.NONE)))


def call_of(batch: Batch, cache: CacheBytes, fault: str | None = None) -> AttentionCall:
    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        specimen.Specimen(fault).attend(
            batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, batch.scale, out, lse
        )

    return call


def test_a_right_call_is_green_with_and_without_lse(batch: Batch, cache: CacheBytes) -> None:
    for with_lse in (True, False):
        report = run_attention(call_of(batch, cache), batch, cache, with_lse=with_lse, repeats=1)
        assert report.ok, report.failures
        assert all((row.max_lse_error is not None) == with_lse for row in report.rows)


def test_what_is_left_unwritten_is_told_from_a_computed_nan(batch: Batch, cache: CacheBytes) -> None:
    inner = call_of(batch, cache)

    def nan_in_one_row(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        inner(out, lse)
        out[1, 0, 0] = math.nan

    def writes_nothing(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        pass

    computed = run_attention(nan_in_one_row, batch, cache)
    assert "finite" in computed.checks
    assert "poison" not in computed.checks
    unwritten = run_attention(writes_nothing, batch, cache)
    assert "poison" in unwritten.checks
    assert "finite" not in unwritten.checks
    assert sum(f.check == "poison" for f in unwritten.failures) == sum(q > 0 for q in batch.q_lens) + 1


@pytest.mark.parametrize("end", [0, -1])
def test_a_write_beside_the_output_is_found(batch: Batch, cache: CacheBytes, end: int) -> None:
    inner = call_of(batch, cache)

    def spills(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        inner(out, lse)
        whole = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())
        whole[end] = 0.0

    assert run_attention(spills, batch, cache).checks == {"guard"}


def test_a_second_call_with_other_bits_is_found(batch: Batch, cache: CacheBytes) -> None:
    inner, calls = call_of(batch, cache), []

    def drifts(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        inner(out, lse)
        calls.append(1)
        if len(calls) == 3:
            out[0, 0, 0] = -out[0, 0, 0] + 1

    assert run_attention(drifts, batch, cache, repeats=1).ok
    calls.clear()
    assert run_attention(drifts, batch, cache, repeats=2).checks == {"repeat"}


def test_a_second_call_that_writes_nothing_is_found(batch: Batch, cache: CacheBytes) -> None:
    inner, calls = call_of(batch, cache), []

    def stops(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        calls.append(1)
        if len(calls) == 1:
            inner(out, lse)

    assert run_attention(stops, batch, cache, repeats=1).checks == {"repeat"}


def test_a_query_rounded_to_bf16_after_its_rotation_fails_and_fp16_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build("decode", head_size=128, contexts=(64, 300), group=8, kv_heads=1, seeds=range(3))
    cache = batch.filled(Mode.INT4_PER_TOKEN_HEAD)
    rotate = specimen.forward
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        monkeypatch.setattr(specimen, "forward", lambda x, dtype=dtype: rotate(x).to(dtype).float())
        report = run_attention(call_of(batch, cache), batch, cache)
        found[dtype] = report.checks

    assert "rel_error" in found[torch.bfloat16]
    assert found[torch.float16] == frozenset()


def test_a_failed_report_raises_with_subject_place_and_both_sides(batch: Batch, cache: CacheBytes) -> None:
    report = run_attention(call_of(batch, cache, "output_scaled"), batch, cache)

    with pytest.raises(GateFailed) as caught:
        report.require("triton-int4-decode@1")

    message = str(caught.value)
    assert caught.value.exit_code == 5
    assert "\n" not in message
    assert message.startswith("triton-int4-decode@1: rel_error at sequence ")
    assert "required at most 0.005, found 0.1" in message or "required at most 0.01, found 0.1" in message


def test_every_limit_has_a_source_and_every_input_one_limit() -> None:
    assert all(limit.source and limit.unit for limit in limits.ALL.values())
    assert limits.rel_error("exact", "normal") == 5e-3
    assert {limits.rel_error("exact", name) for name in INPUTS if name != "normal"} == {1e-2}
    assert limits.rel_error("fast", "normal", 0.14) == pytest.approx(1.4e-2)
    assert limits.rel_error("fast", "q4", 0.01) == 1e-2


def test_sequences_without_labels_are_judged_as_normal(batch: Batch, right: Reference) -> None:
    report = check_attention((right.out * 1.0075).float(), right, batch.q_lens, dtype=torch.float32)

    assert len(report.failures) == sum(q > 0 and c > 0 for q, c in zip(batch.q_lens, batch.contexts, strict=True))
    assert report.failures[0].where == "sequence 1"
    assert Label(1, "decode", "planar.1", "normal", 1, 0) != report.rows[0].label


def test_a_failure_names_the_features_of_its_sequence_where_they_are_not_the_usual_ones() -> None:
    asked = build("decode", head_size=64, contexts=(17,), inputs=("normal",), features=("window", "sinks"))
    made = asked.filled(Mode.NONE)

    report = run_attention(lambda out, lse: None, asked, made)
    plain = build("decode", head_size=64, contexts=(17,), inputs=("normal",))
    usual = run_attention(lambda out, lse: None, plain, plain.filled(Mode.NONE))

    assert "group 4, causal+window+sinks, normal" in report.failures[0].where
    assert "group 4, normal" in usual.failures[0].where
