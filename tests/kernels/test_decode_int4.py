"""Int4 decode on int8 units under the gate: widths, groups, cuts, features, and what its rounding must survive."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from kvreg.core.layouts import INLINE, PLANAR, TOKEN_MINOR, default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import INPUTS, build
from kvreg_cuda.variants import own
from kvreg_triton.variants import FEATURES

INT4 = Mode.INT4_PER_TOKEN_HEAD
(VARIANT,) = (each for each in own() if each.mode is INT4 and each.op is Op.DECODE)
# One part in 127 * 254 for each of q and the weights, over contexts of a few hundred; limits of the class are 5e-3.
RESIDUE_ERROR = 5e-4


def batch_of(kind, **shape):
    """A batch in fp32 and int4's default layout."""
    return build(kind, **{"dtype": "fp32", "layout": default(INT4), **shape})


@pytest.fixture
def call_of(attention):
    return partial(attention, INT4, Op.DECODE, own=VARIANT)


@pytest.fixture
def judged(call_of):
    def run(batch, *, bound=RESIDUE_ERROR, **cut):
        cache = batch.filled(INT4)

        report = run_attention(call_of(batch, cache, **cut), batch, cache)

        assert report.ok, report.failures
        assert max(row.max_rel_error for row in report.rows) < bound

    return run


@pytest.mark.parametrize(
    ("head_size", "group"), [(32, 8), (40, 3), (64, 7), (96, 1), (128, 4), (256, 8), (512, 2), (72, 12)]
)
def test_every_width_and_group_is_right_for_normal_and_hard_inputs(head_size, group, judged):
    contexts = (1, 17, 150) if head_size <= 128 else (1, 17)
    judged(batch_of("decode", head_size=head_size, group=group, kv_heads=1, contexts=contexts))


@pytest.mark.parametrize(
    ("splits", "chunk", "tile", "layout"),
    [(1, 0, 32, INLINE), (3, 0, 64, PLANAR), (16, 0, 32, TOKEN_MINOR), (5, 64, 64, TOKEN_MINOR)],
    ids=str,
)
def test_every_cut_of_the_context_is_right(splits, chunk, tile, layout, judged):
    batch = batch_of("decode", head_size=64, contexts=(1, 17, 300), inputs=("normal",), layout=layout)
    judged(batch, splits=splits, chunk=chunk, tile=tile)


@pytest.mark.parametrize(
    "features",
    [("non_causal", "window"), ("per_sequence_causal",), ("window", "prefix_ranges"), ("softcap", "sinks", "alibi")],
    ids="+".join,
)
def test_features_are_right(features, judged):
    batch = batch_of("mixed", head_size=64, kv_heads=1, contexts=(17, 200), inputs=("normal",), features=features)
    judged(batch, splits=2)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_group_that_shares_rows_among_subsets_of_keys_obeys_what_masks_them(group, judged):
    features = ("softcap", "sinks", "alibi", "window")
    judged(batch_of("decode", head_size=64, group=group, contexts=(3, 150), inputs=("normal",), features=features))


def test_drafts_that_fill_sixteen_rows_are_right(judged):
    judged(batch_of("mixed", head_size=64, group=8, kv_heads=1, contexts=(40, 100), inputs=("normal",)), splits=2)


def test_weights_below_half_a_step_of_their_tiles_largest_cost_what_the_step_says(judged):
    """One key takes nearly all of the softmax; the others of its tile are below the step, those of other tiles not."""
    batch = batch_of("decode", head_size=64, group=1, kv_heads=1, contexts=(200,), inputs=("one_sided",))
    aimed = batch.q[0, 0] / batch.q[0, 0].norm()
    batch.k.copy_(batch.k * 0.1)
    batch.k[3, 0] = aimed * 12.0 / batch.scale / batch.q[0, 0].norm()
    # At most half a step for each of the 63 others of a tile.
    judged(batch, bound=1.5 * 63 / 2 / (127 * 254), tile=64)


@pytest.mark.parametrize("group", [1, 8])
def test_a_tile_that_weighs_next_to_nothing_overflows_nothing(group, judged):
    """Sums are in units of the tile before: one of 2**-120 of the largest weight would make them infinite."""
    batch = batch_of("decode", head_size=64, group=group, kv_heads=1, contexts=(200,), inputs=("normal",))
    batch.q.copy_(batch.q[:, :1].clone())
    aimed = batch.q[0, 0] / batch.q[0, 0].norm()
    batch.k.copy_(batch.k * 0.1)
    # Scores of 0 but for the second tile of 64, -83 below them, which is 2**-120.
    batch.k[64:128, 0] = aimed * -83.0 / batch.scale / batch.q[0, 0].norm()
    batch.v.mul_(100.0)
    judged(batch, tile=64)


def test_a_negative_scale_turns_scores_round(judged):
    batch = batch_of("decode", head_size=64, group=3, kv_heads=1, contexts=(90,), inputs=("normal",))
    judged(replace(batch, scale=-batch.scale), splits=2)


def test_values_as_small_as_bf16_allows_keep_their_accuracy(judged):
    batch = batch_of("decode", head_size=64, group=4, kv_heads=1, contexts=(40,), inputs=("normal",))
    batch.v.mul_(1e-30)
    judged(batch)


@pytest.mark.parametrize("plane", ["k_scale", "v_scale"])
def test_a_scale_that_is_not_finite_spoils_the_rows_that_see_it_and_no_other(plane, call_of):
    batch = batch_of("decode", head_size=64, group=2, kv_heads=1, contexts=(70, 70), inputs=("normal",))
    cache = batch.filled(INT4)
    clean, spoiled = torch.empty_like(batch.q), torch.empty_like(batch.q)
    call_of(batch, cache)(clean, None)
    slot = int(batch.slots[3])
    cache.fields()[plane][slot // batch.page, slot % batch.page, 0] = float("nan")

    call_of(batch, cache)(spoiled, None)

    assert not torch.isfinite(spoiled[0]).all(-1).any()
    assert torch.equal(spoiled[1], clean[1])


def test_a_query_row_that_is_not_finite_stays_where_it_is(call_of):
    batch = batch_of("decode", head_size=64, group=2, kv_heads=1, contexts=(70, 70), inputs=("normal",))
    cache = batch.filled(INT4)
    clean, spoiled = torch.empty_like(batch.q), torch.empty_like(batch.q)
    call_of(batch, cache)(clean, None)
    batch.q[0, 1, 5] = float("nan")

    call_of(batch, cache)(spoiled, None)

    assert torch.isnan(spoiled[0, 1]).all()
    assert torch.equal(spoiled[0, 0], clean[0, 0])
    assert torch.equal(spoiled[1], clean[1])


def test_rows_behind_the_last_sequence_become_zeros_whatever_stands_before_them(call_of):
    batch = batch_of("decode", head_size=64, group=2, kv_heads=1, contexts=(70, 300), inputs=("normal",))
    cache = batch.filled(INT4)
    padded = replace(batch, q=torch.cat([batch.q, batch.q]))
    out = torch.full_like(padded.q, float("nan"))

    call_of(padded, cache)(out, None)

    assert (out[2:] == 0).all()


def test_it_is_offered_for_decode_of_narrow_groups_with_every_feature():
    assert VARIANT.op is Op.DECODE
    assert VARIANT.constraints.group_max == 16
    assert VARIANT.constraints.features == FEATURES
    assert set(INPUTS) >= {"normal", "one_sided"}
