"""Decode over pairs of 8-bit codes under the gate: widths, groups, cuts, layouts, features, scales not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvreg.core.layouts import INLINE, PLANAR
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.gate import run_attention
from kvreg.runtime.launchers import load
from kvreg.testing import INPUTS, build
from kvreg_cuda.variants import own
from kvreg_triton.variants import FEATURES

MODES = (Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD)
OWN = {each.mode: each for each in own() if each.mode in MODES and each.op is Op.DECODE}
# Interpreted in fp32 only the weights' order of sums differs from the reference; limits of the class are 5e-3.
SUM_ERROR = 1e-5


def batch_of(kind, **shape):
    return build(kind, **{"dtype": "fp32", "kv_heads": 1, "inputs": ("normal",), **shape})


def unlike(**shape):
    """A batch for shares of tiles of 32: no key, one, a tile exactly, and one context far longer than the others."""
    return batch_of("decode", **{"head_size": 40, "group": 2, "contexts": (1, 0, 32, 200), **shape})


@pytest.fixture
def call_of(attention):
    def make(batch, cache, **cut):
        return attention(cache.mode, Op.DECODE, batch, cache, own=OWN[cache.mode], **cut)

    return make


@pytest.fixture
def judged(call_of):
    def run(mode, batch, *, repeats=0, **cut):
        cache = batch.filled(mode)

        report = run_attention(call_of(batch, cache, **cut), batch, cache, repeats=repeats)

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


def test_more_splits_than_are_read_few_at_a_time_are_right(judged):
    batch = batch_of("decode", head_size=32, group=1, contexts=(1050,))
    judged(Mode.INT8_PER_TOKEN_HEAD, batch, splits=66, tile=16)


@pytest.mark.parametrize(
    ("mode", "shares"),
    [
        (Mode.INT8_PER_TOKEN_HEAD, 1),
        (Mode.FP8_PER_TOKEN_HEAD, 3),
        (Mode.FP8_PER_TENSOR, 16),
        (Mode.INT8_PER_TOKEN_HEAD, 34),
    ],
)
def test_any_number_of_equal_shares_is_right_and_gives_the_same_bits_again(mode, shares, judged):
    """1, some, and more than there are tiles."""
    judged(mode, unlike(), splits=3, shares=shares, tile=32, repeats=int(shares == 34))


def test_features_are_right_in_equal_shares(judged):
    judged(Mode.INT8_PER_TOKEN_HEAD, unlike(features=("softcap", "alibi")), splits=3, shares=7, tile=32)


@pytest.mark.parametrize("features", [("window",), ("sinks",), ("prefix_ranges",)], ids="+".join)
def test_what_equal_shares_do_not_serve_is_cut_context_by_context(features, judged):
    batch = unlike(contexts=(17, 100), features=features)
    judged(Mode.FP8_PER_TOKEN_HEAD, batch, splits=2, shares=5, tile=32)


def test_more_rows_than_sequences_are_cut_context_by_context(judged):
    """Each program of a share knows as many rows as sequences, 16 at least."""
    judged(Mode.INT8_PER_TOKEN_HEAD, batch_of("prefill", head_size=32, contexts=(20,)), splits=2, shares=5, tile=32)


@pytest.mark.parametrize("features", ["causal", "non_causal"])
def test_a_row_that_sees_less_than_its_sequence_holds_joins_only_what_it_sees(features, call_of):
    """The last tile of 65 keys is the second row's alone, and so is the share that holds it; the third has no keys."""
    whole = unlike(contexts=(65, 40, 90), features=(features,))
    cache = whole.filled(Mode.INT8_PER_TOKEN_HEAD)
    cu_q = torch.tensor((0, 2, 2, 2), dtype=torch.int32)
    batch = replace(whole, q=whole.q[:3], cu_q=cu_q, seq_lens=whole.seq_lens[:3])
    shared, cut = torch.full_like(batch.q, float("nan")), torch.full_like(batch.q, float("nan"))

    call_of(batch, cache, splits=3, shares=11, tile=32)(shared, None)
    call_of(batch, cache, splits=3, tile=32)(cut, None)

    torch.testing.assert_close(shared, cut, atol=SUM_ERROR, rtol=SUM_ERROR)
    assert (shared[2] == 0).all()


@pytest.mark.parametrize(
    ("head_size", "tuned", "programs"),
    [(64, {}, 132), (128, {}, 33), (256, {}, 66), (512, {}, 16), (128, {"num_warps": 8, "programs_per_unit": 4}, 16)],
    ids=str,
)
def test_shares_are_as_many_as_programs_that_an_h200_surely_holds_at_once(head_size, tuned, programs):
    """Eight warps of a multiprocessor may have 255 registers a thread."""
    variant = OWN[Mode.INT8_PER_TOKEN_HEAD]
    config = variant.default_config(None, Request("h200", variant.mode, head_size, 32, 8, 16))

    assert load(variant.launcher).shares(8, 132, {**config, **tuned}) == programs


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
