"""Decode over pairs of 8-bit codes under the gate: widths, groups, cuts, layouts, features, scales not finite."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.layouts import INLINE, PLANAR
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import INPUTS, build
from kvreg_cuda.variants import own
from kvreg_triton.variants import FEATURES

MODES = (Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD)
OWN = {each.mode: each for each in own() if each.mode in MODES}
# Interpreted in fp32 only the weights' order of sums differs from the reference; limits of the class are 5e-3.
SUM_ERROR = 1e-5


def batch_of(kind, **shape):
    return build(kind, **{"dtype": "fp32", "kv_heads": 1, "inputs": ("normal",), **shape})


@pytest.fixture
def call_of(attention):
    def make(batch, cache, **cut):
        return attention(cache.mode, Op.DECODE, batch, cache, own=OWN[cache.mode], **cut)

    return make


@pytest.fixture
def judged(call_of):
    def run(mode, batch, **cut):
        cache = batch.filled(mode)

        report = run_attention(call_of(batch, cache, **cut), batch, cache)

        assert report.ok, report.failures
        assert max(row.max_rel_error for row in report.rows) < SUM_ERROR

    return run


@pytest.mark.parametrize(
    ("mode", "head_size", "group"),
    [
        *((mode, 32, 16) for mode in MODES),
        (Mode.INT8_PER_TOKEN_HEAD, 40, 3),
        (Mode.FP8_PER_TOKEN_HEAD, 72, 4),
        (Mode.FP8_PER_TENSOR, 128, 1),
        (Mode.FP8_PER_TOKEN_HEAD, 256, 5),
        (Mode.INT8_PER_TOKEN_HEAD, 512, 2),
    ],
)
def test_every_width_and_group_up_to_sixteen_is_right(mode, head_size, group, judged):
    contexts = (1, 17, 300) if head_size <= 128 else (1, 17)
    judged(mode, batch_of("decode", head_size=head_size, group=group, contexts=contexts))


@pytest.mark.parametrize("mode", MODES)
def test_hard_inputs_are_right(mode, judged):
    judged(mode, batch_of("decode", head_size=64, contexts=(17, 200), inputs=INPUTS[1:]))


@pytest.mark.parametrize(
    ("mode", "splits", "chunk", "tile", "layout"),
    [
        (Mode.INT8_PER_TOKEN_HEAD, 3, 0, 16, INLINE),
        (Mode.FP8_PER_TOKEN_HEAD, 5, 64, 64, INLINE),
        (Mode.FP8_PER_TENSOR, 16, 0, 32, PLANAR),
    ],
)
def test_every_cut_of_the_context_is_right(mode, splits, chunk, tile, layout, judged):
    batch = batch_of("decode", head_size=40, contexts=(1, 17, 300), layout=layout)
    judged(mode, batch, splits=splits, chunk=chunk, tile=tile)


@pytest.mark.parametrize(
    ("mode", "features"),
    [
        (Mode.INT8_PER_TOKEN_HEAD, ("non_causal", "window")),
        (Mode.FP8_PER_TENSOR, ("per_sequence_causal", "multi_query_split")),
        (Mode.FP8_PER_TOKEN_HEAD, ("window", "prefix_ranges")),
        (Mode.FP8_PER_TENSOR, ("window", "prefix_ranges")),
        (Mode.INT8_PER_TOKEN_HEAD, ("softcap", "sinks", "alibi")),
    ],
)
def test_features_are_right(mode, features, judged):
    judged(mode, batch_of("mixed", head_size=64, contexts=(17, 200), features=features), splits=2)


@pytest.mark.parametrize(
    ("mode", "plane"),
    [
        (Mode.INT8_PER_TOKEN_HEAD, "k_scale"),
        (Mode.INT8_PER_TOKEN_HEAD, "v_scale"),
        (Mode.FP8_PER_TOKEN_HEAD, "v_scale"),
    ],
)
def test_a_scale_that_is_not_finite_spoils_the_rows_that_see_it_and_no_other(mode, plane, call_of):
    batch = batch_of("decode", head_size=64, group=2, contexts=(70, 70))
    cache = batch.filled(mode)
    clean, spoiled = torch.empty_like(batch.q), torch.empty_like(batch.q)
    call_of(batch, cache)(clean, None)
    slot = int(batch.slots[3])
    cache.fields()[plane][slot // batch.page, slot % batch.page, 0] = float("nan")

    call_of(batch, cache)(spoiled, None)

    assert not torch.isfinite(spoiled[0]).all(-1).any()
    assert torch.equal(spoiled[1], clean[1])


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_queries_of_any_size_keep_their_accuracy(factor, judged):
    """fp16 operands would flush or overflow them; a power of two is taken out of each row."""
    batch = batch_of("decode", head_size=64, contexts=(40,))
    batch.q.mul_(factor)
    batch.k.mul_(1 / factor)
    judged(Mode.FP8_PER_TOKEN_HEAD if factor < 1 else Mode.INT8_PER_TOKEN_HEAD, batch)


def test_a_query_row_that_is_not_finite_stays_where_it_is(call_of):
    batch = batch_of("decode", head_size=64, group=2, contexts=(70, 70))
    cache = batch.filled(Mode.INT8_PER_TOKEN_HEAD)
    clean, spoiled = torch.empty_like(batch.q), torch.empty_like(batch.q)
    call_of(batch, cache)(clean, None)
    batch.q[0, 1, 5] = float("nan")

    call_of(batch, cache)(spoiled, None)

    assert torch.isnan(spoiled[0, 1]).all()
    assert torch.equal(spoiled[0, 0], clean[0, 0])
    assert torch.equal(spoiled[1], clean[1])


def test_they_are_offered_for_decode_of_groups_up_to_sixteen_with_every_feature():
    assert set(OWN) == set(MODES)
    assert {each.op for each in OWN.values()} == {Op.DECODE}
    assert {each.constraints.group_max for each in OWN.values()} == {16}
    assert all(each.constraints.features == FEATURES for each in OWN.values())


def test_fp8_needs_the_conversion_that_sm_89_brought_and_int8_does_not():
    assert {mode: each.constraints.min_capability for mode, each in OWN.items()} == {
        Mode.INT8_PER_TOKEN_HEAD: (8, 0),
        Mode.FP8_PER_TENSOR: (8, 9),
        Mode.FP8_PER_TOKEN_HEAD: (8, 9),
    }
