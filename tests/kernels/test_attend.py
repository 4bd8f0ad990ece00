"""Decode and prefill kernels under the gate: every head size, group, mix of query lengths, split and layout."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from kvreg.core.layouts import LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.gate.limits import EXACT_NORMAL
from kvreg.testing import CONTEXTS, INPUTS, build
from kvreg_triton import launch

MODES = tuple(Mode)
TWO = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
FP8 = (Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD)
VALIDATED = (64, 80, 96, 112, 128, 160, 192, 256)
AWKWARD = (32, 40, 72, 504, 512)
SHORT = (1, 17, 64)
# fp32 compute leaves only the cancellation of float32 sums; a wrong index or mask is off by far more.
FP32_ERROR = 2e-5


def scheduled_unless(usual, *values):
    """These values as a case of the scheduled form, but for `usual` ones: 8 bits take the kernel of `none`."""
    return pytest.param(*values, marks=() if usual else pytest.mark.long)


def batch_of(mode, kind, **shape):
    """A batch in fp32 and the default layout of the mode."""
    return build(kind, **{"dtype": "fp32", "layout": default(mode), **shape})


def judged(mode, op, batch, attention, *, bound=FP32_ERROR, repeats=0, **cut):
    cache = batch.filled(mode)

    report = run_attention(attention(mode, op, batch, cache, **cut), batch, cache, repeats=repeats)

    assert report.ok, report.failures
    assert max(row.max_rel_error for row in report.rows) < bound
    return report


def is_usual(op, mode, head_size):
    """int4 rotates every size in its own way; the others share a kernel, whose widths and rests the few sizes have."""
    if mode in FP8:
        return head_size == 96
    few = (64, 72, 96) if op is Op.PREFILL else (40, 64, 72, 96, 504)
    return mode is Mode.INT4_PER_TOKEN_HEAD or head_size in few


SIZES = (*zip(VALIDATED, (1, 4, 7, 8, 4, 1, 8, 7), strict=True), *((d, 5) for d in AWKWARD))


@pytest.mark.parametrize(
    ("op", "mode", "head_size", "group"),
    [
        scheduled_unless(is_usual(op, mode, d), op, mode, d, group)
        for op in (Op.DECODE, Op.PREFILL)
        for mode in MODES
        for d, group in SIZES
    ],
)
def test_every_head_size_is_right_at_short_contexts(mode, op, head_size, group, attention):
    contexts = SHORT if head_size <= 128 else (1, 17)  # the widest blocks take the interpreter half a minute
    inputs = INPUTS if op is Op.DECODE else ("normal", "channel30")  # a prefill has dozens of rows for a decode's one
    shape = {"head_size": head_size, "group": group, "contexts": contexts, "inputs": inputs}
    judged(mode, op, batch_of(mode, op.value, kv_heads=1, **shape), attention)


@pytest.mark.parametrize("op", [Op.DECODE, Op.PREFILL])
@pytest.mark.parametrize("mode", TWO)
def test_each_op_takes_every_mix_of_query_lengths(mode, op, attention):
    batch = batch_of(mode, "mixed", head_size=96, kv_heads=2, contexts=(1, 17), inputs=("normal", "q4"))
    judged(mode, op, batch, attention)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("head_size", VALIDATED)
@pytest.mark.parametrize("mode", TWO)
def test_every_head_size_is_right_at_long_contexts(mode, head_size, seed, kind, attention):
    batch = batch_of(
        mode,
        kind,
        head_size=head_size,
        group=4,
        kv_heads=1,
        contexts=(1024, 8192),
        inputs=("normal",),
        seeds=(seed,),
    )
    op = Op.DECODE if kind == "decode" else Op.PREFILL
    judged(mode, op, batch, attention, splits=5 if op is Op.DECODE else 1)


@pytest.mark.parametrize(
    ("op", "group"),
    [
        scheduled_unless(op is Op.DECODE or group < 24, op, group)
        for op in (Op.DECODE, Op.PREFILL)
        for group in (1, 4, 7, 8, 24, 71)
    ],
)
@pytest.mark.parametrize("mode", TWO)
def test_every_group_is_right(mode, op, group, attention):
    batch = batch_of(mode, op.value, head_size=64, group=group, kv_heads=2, contexts=SHORT, inputs=("normal",))
    judged(mode, op, batch, attention)


@pytest.mark.long
@pytest.mark.parametrize(("page", "head_size"), [(16, 96), (48, 40), (528, 64), (544, 64)])
@pytest.mark.parametrize("op", [Op.DECODE, Op.PREFILL])
@pytest.mark.parametrize("mode", TWO)
def test_every_page_size_is_right(mode, op, page, head_size, attention):
    batch = batch_of(mode, "decode", head_size=head_size, contexts=(1, 17, 600), page=page, inputs=("normal",))
    judged(mode, op, batch, attention)


def cuts():
    """(mode, layout, splits, chunk): all of them for int4, three splits wherever bytes lie in another way."""
    for mode in MODES:
        for layout in known(mode):
            for cut in ((2, 0), (3, 0), (16, 0), (5, 64)):
                whole = mode is Mode.INT4_PER_TOKEN_HEAD and layout == str(default(mode))
                yield scheduled_unless(whole or (cut == (3, 0) and mode not in FP8), mode, layout, *cut)


@pytest.mark.parametrize(("mode", "layout", "splits", "chunk"), [*cuts()])
def test_every_cut_of_the_context_is_right(mode, splits, chunk, layout, attention):
    batch = batch_of(
        mode, "decode", head_size=96, kv_heads=1, contexts=(1, 17, 64, 300), inputs=("normal",),
        layout=LayoutId.parse(layout),
    )  # fmt: skip
    judged(mode, Op.DECODE, batch, attention, splits=splits, chunk=chunk, repeats=1)


FEATURES = (
    ("non_causal",), ("per_sequence_causal",), ("window",), ("non_causal", "window"), ("softcap",), ("sinks",),
    ("alibi",), ("prefix_ranges",), ("window", "prefix_ranges"), ("window", "softcap", "sinks", "alibi"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "op", "features"),
    [
        # int8 weighs values in the exponent of the softmax: what meets it there is features together. A prefill masks
        # as a decode does.
        scheduled_unless(
            mode is Mode.INT4_PER_TOKEN_HEAD
            or (mode is Mode.NONE and (op is Op.DECODE or len(features) > 1))
            or (mode is Mode.INT8_PER_TOKEN_HEAD and op is Op.DECODE and len(features) > 1),
            mode,
            op,
            features,
        )
        for mode in MODES
        for op in (Op.DECODE, Op.PREFILL)
        for features in FEATURES
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_every_feature_is_right_in_every_mode(mode, op, features, attention):
    batch = batch_of(
        mode, op.value, head_size=64, kv_heads=2, contexts=(1, 17, 200), inputs=("normal",), features=features
    )
    judged(mode, op, batch, attention, splits=3 if op is Op.DECODE else 1, tile=32)


@pytest.mark.long
@pytest.mark.parametrize(
    "features",
    [("causal",), ("window",), ("sinks",), ("per_sequence_causal",), ("window", "prefix_ranges")],
    ids="+".join,
)
@pytest.mark.parametrize("mode", TWO)
def test_several_query_rows_of_a_sequence_are_split_too(mode, features, attention):
    batch = batch_of(mode, "mixed", head_size=96, contexts=(9, 300), inputs=("normal",), features=features)
    judged(mode, Op.DECODE, batch, attention, splits=4)


@pytest.mark.parametrize("mode", [scheduled_unless(mode not in FP8, mode) for mode in MODES])
def test_a_context_inside_one_split_gives_the_same_bits_however_many_splits_there_are(mode, attention):
    batch = batch_of(mode, "decode", head_size=96, contexts=(1, 7, 30), inputs=("normal",))
    cache = batch.filled(mode)
    whole, split = torch.empty_like(batch.q), torch.empty_like(batch.q)

    attention(mode, Op.DECODE, batch, cache, splits=1)(whole, None)
    attention(mode, Op.DECODE, batch, cache, splits=4, chunk=64)(split, None)

    assert torch.equal(whole, split)


@pytest.mark.parametrize("mode", [scheduled_unless(mode not in FP8, mode) for mode in MODES])
def test_fixed_chunks_give_the_same_bits_in_every_batch(mode, attention):
    batch = batch_of(mode, "decode", head_size=64, contexts=(1, 200, 333), inputs=("normal",), padding=0)
    alone = batch_of(mode, "decode", head_size=64, contexts=(333,), inputs=("normal",), padding=0)
    outputs = []
    alone.q.copy_(batch.q[2:])
    alone.k.copy_(batch.k[201:])
    alone.v.copy_(batch.v[201:])

    for b, splits in ((batch, 3), (alone, 6)):
        cache = b.filled(mode)
        outputs.append(torch.empty_like(b.q))
        attention(mode, Op.DECODE, b, cache, splits=splits, chunk=128)(outputs[-1], None)

    assert torch.equal(outputs[0][2], outputs[1][0])


@pytest.mark.parametrize("op", [Op.DECODE, Op.PREFILL])
def test_the_fp16_operands_of_a_card_are_exact_enough(op, attention, monkeypatch):
    """The path that cards take: codes put together from bits, q and weights rounded to fp16."""
    monkeypatch.setattr(launch, "operand_types", lambda dtype, mode: (tl.float16, tl.float16))
    batch = batch_of(Mode.INT4_PER_TOKEN_HEAD, op.value, head_size=96, contexts=SHORT, inputs=INPUTS)
    judged(Mode.INT4_PER_TOKEN_HEAD, op, batch, attention, bound=EXACT_NORMAL.value)


def test_the_contexts_of_the_long_form_are_those_of_the_gate():
    assert (*SHORT, 1024, 8192) == CONTEXTS
