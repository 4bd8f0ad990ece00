"""Prefill over laid out rows under the gate: every mode, head size, feature and layout, and what is left to pages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton.language as tl

from kvreg.core.layouts import LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import build
from kvreg_cuda import prefill_launching
from kvreg_cuda.variants import own

MODES = tuple(Mode)
TWO = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
PREFILL = {each.mode: each for each in own() if each.op is Op.PREFILL}
# fp32 compute leaves only the cancellation of float32 sums; a wrong index or mask is off by far more.
FP32_ERROR = 2e-5
# Values, weights and q are rounded to 11 bits once each: found 7e-4 to 1.5e-3.
FP16_ERROR = 2e-3
NEVER = 1 << 20


def batch_of(mode, kind="prefill", **shape):
    shared = {"dtype": "fp32", "layout": default(mode), "group": 2, "kv_heads": 2, "inputs": ("normal",)}
    return build(kind, **{**shared, **shape})


def of_the_mode(mode):
    """These cases of the modes with a kernel of their own, and of the others in the scheduled form."""
    return mode if mode in TWO else pytest.param(mode, marks=pytest.mark.long)


@pytest.fixture
def in_fp16(monkeypatch):
    """Lay rows out in fp16 as on a card; other tests of the interpreter have float32."""
    monkeypatch.setattr(prefill_launching, "operand_types", lambda dtype, mode: (tl.float16, tl.float16))


def judged(mode, batch, attention, *, cache=None, bound=FP32_ERROR, **config):
    """Judge with every sequence laid out that has a query row, unless told otherwise."""
    cache = batch.filled(mode) if cache is None else cache
    settings = {"rows": 32, "tile": 32, "blocks_laid_out": 0, **config}

    report = run_attention(attention(mode, Op.PREFILL, batch, cache, own=PREFILL[mode], **settings), batch, cache)

    assert report.ok, report.failures
    assert max(row.max_rel_error for row in report.rows) < bound
    return report


SIZES = ((64, 4), (80, 7), (96, 1), (128, 8), (40, 5))


@pytest.mark.parametrize(("head_size", "group"), SIZES)
@pytest.mark.parametrize("mode", [of_the_mode(mode) for mode in MODES])
def test_every_head_size_is_right(mode, head_size, group, attention):
    batch = batch_of(mode, head_size=head_size, group=group, kv_heads=1, contexts=(1, 70))
    judged(mode, batch, attention)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in TWO])
def test_8_bits_are_right(mode, attention):
    judged(mode, batch_of(mode, head_size=72, contexts=(1, 40)), attention)


@pytest.mark.long
@pytest.mark.parametrize("head_size", [32, 72, 160, 192, 256, 512])
@pytest.mark.parametrize("mode", MODES)
def test_the_other_head_sizes_are_right_too(mode, head_size, attention):
    batch = batch_of(
        mode, head_size=head_size, group=2, kv_heads=1, contexts=(1, 17, 64), inputs=("normal", "channel30")
    )
    judged(mode, batch, attention, rows=16)


@pytest.mark.parametrize(("mode", "layout"), [(mode, layout) for mode in MODES for layout in known(mode)[1:]])
def test_every_layout_is_right(mode, layout, attention):
    batch = batch_of(mode, head_size=48, contexts=(17, 40), layout=LayoutId.parse(layout))
    judged(mode, batch, attention)


FEATURES = (
    ("non_causal",), ("per_sequence_causal",), ("window",), ("non_causal", "window"), ("softcap",), ("sinks",),
    ("alibi",), ("prefix_ranges",), ("window", "softcap", "sinks", "alibi", "prefix_ranges"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "features"),
    # What masks is one code for all modes; the last has everything at once.
    [
        pytest.param(
            mode, each, marks=() if mode is TWO[1] or (mode is TWO[0] and each == FEATURES[-1]) else pytest.mark.long
        )
        for mode in MODES
        for each in FEATURES
    ],
)
def test_every_feature_is_right(mode, features, attention):
    """A window of 5 leaves the first tokens out of what is laid out."""
    batch = batch_of(mode, head_size=32, kv_heads=1, contexts=(17, 130), features=features)
    judged(mode, batch, attention)


@pytest.mark.parametrize("mode", TWO)
@pytest.mark.parametrize("blocks", [0, 1, 2, NEVER])
def test_rows_that_are_laid_out_and_rows_of_pages_make_one_batch(mode, blocks, attention):
    """Sequences of 8, 1, 3 and 5 query rows and of whole contexts, and rows behind the last one, in every mix."""
    batch = batch_of(mode, "mixed", head_size=32, contexts=(9, 40))
    judged(mode, batch, attention, rows=16, blocks_laid_out=blocks)


@pytest.mark.parametrize("mode", TWO)
@pytest.mark.parametrize("rows_at_once", [1, 3 * 200])
def test_memory_for_one_head_of_one_sequence_is_enough(mode, rows_at_once, attention, monkeypatch):
    batch = batch_of(mode, head_size=32, group=1, kv_heads=3, contexts=(1, 17))
    row_bytes = 2 * 32 * torch.float32.itemsize
    monkeypatch.setattr(prefill_launching, "MOST_BYTES", rows_at_once * row_bytes)

    judged(mode, batch, attention)


def test_turns_change_no_bit(attention, in_fp16, monkeypatch):
    """The largest scale of a sequence and head is that of the turn that it is in, and of no turn before."""
    mode = Mode.INT8_PER_TOKEN_HEAD
    batch = batch_of(mode, head_size=32, group=1, kv_heads=2, contexts=(40, 17))
    batch.k[:, 0] *= 2.0**34
    batch.v[:, 0] *= 2.0**34
    cache = batch.filled(mode)
    whole, _ = outputs(mode, batch, cache, attention)
    monkeypatch.setattr(prefill_launching, "MOST_BYTES", 1)
    turns, _ = outputs(mode, batch, cache, attention)

    assert torch.equal(whole, turns)


@pytest.mark.parametrize("mode", [of_the_mode(mode) for mode in MODES])
def test_the_rows_of_a_sequence_are_the_same_bits_in_every_batch(mode, attention):
    several = batch_of(mode, head_size=32, contexts=(17, 60))
    alone = batch_of(mode, head_size=32, contexts=(17,))
    out, single = torch.empty_like(several.q), torch.empty_like(alone.q)
    settings = {"own": PREFILL[mode], "rows": 16, "tile": 32, "blocks_laid_out": 1}

    attention(mode, Op.PREFILL, several, several.filled(mode), **settings)(out, None)
    attention(mode, Op.PREFILL, alone, alone.filled(mode), **settings)(single, None)

    assert torch.equal(several.q[:17], alone.q)
    assert torch.equal(out[:17], single)


@pytest.mark.parametrize("mode", TWO)
def test_a_context_longer_than_the_plan_says_is_read_from_its_pages(mode, attention):
    batch = batch_of(mode, head_size=32, kv_heads=1, contexts=(17, 150, 60))
    cache = batch.filled(mode)
    call = attention(
        mode, Op.PREFILL, batch, cache, own=PREFILL[mode], max_context=60, rows=16, tile=32, blocks_laid_out=0
    )
    assert run_attention(call, batch, cache).ok


def outputs(mode, batch, cache, attention, **settings):
    out, lse = torch.full_like(batch.q, 7.0), torch.empty(batch.q.shape[:2])
    settings = {"rows": 32, "tile": 32, "blocks_laid_out": 0, **settings}
    attention(mode, Op.PREFILL, batch, cache, own=PREFILL[mode], **settings)(out, lse)
    return out, lse


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("mode", [Mode.NONE, Mode.INT8_PER_TOKEN_HEAD, Mode.INT4_PER_TOKEN_HEAD])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other(mode, value, attention):
    batch = batch_of(mode, head_size=32, contexts=(40,))
    cache = batch.filled(mode)
    clean, _ = outputs(mode, batch, cache, attention)
    page, slot = int(batch.page_table[0, 33 // 16]), 33 % 16
    (cache.v if mode is Mode.NONE else cache.v_scale)[page, slot, 1] = value
    spoiled, _ = outputs(mode, batch, cache, attention)

    group = batch.q.shape[1] // 2
    # Rows that see token 33, of the KV head that holds it.
    assert not spoiled[33:, group:].isfinite().all(-1).any()
    spoiled[33:, group:] = clean[33:, group:]
    assert torch.equal(spoiled, clean)


@pytest.mark.parametrize("power", [-24, 24])
@pytest.mark.parametrize("mode", [Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD, Mode.INT4_PER_TOKEN_HEAD])
def test_one_row_far_larger_or_smaller_than_the_others_spoils_none(mode, power, attention, in_fp16):
    """The largest scale of a sequence sets the unit of all its rows: those 2**24 below it keep bits enough."""
    batch = batch_of(mode, head_size=32, contexts=(40,))
    batch.v[5] *= 2.0**power
    cache = batch.filled(mode)
    judged(mode, batch, attention, cache=cache, bound=FP16_ERROR)


@pytest.mark.parametrize("mode", TWO)
@pytest.mark.parametrize("factor", [-1.0, 0.0, 30.0])
def test_every_scale_is_right(mode, factor, attention):
    batch = batch_of(mode, head_size=32, kv_heads=1, contexts=(1, 40))
    batch = replace(batch, scale=batch.scale * factor)
    judged(mode, batch, attention)
