"""Both backends under the gate, through the public calls."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.layouts import LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.gate.run import run_attention, run_write
from kvreg.runtime.attention import write
from kvreg.testing import KINDS, Batch, build

MODES = tuple(Mode)
SHORT = (1, 17, 64)
FAMILIES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
"""One mode of each Triton kernel, for what does not depend on the mode: the interpreter is slow."""
BOTH = pytest.mark.parametrize(
    ("backend", "mode"),
    [*(("cpu", mode) for mode in MODES), *(("triton", mode) for mode in FAMILIES)],
    indirect=["backend"],
)
FEATURES = (
    ("non_causal",),
    ("per_sequence_causal",),
    ("window",),
    ("non_causal", "window"),
    ("softcap",),
    ("sinks",),
    ("alibi",),
    ("prefix_ranges",),
    ("prefix_ranges", "window"),
    ("multi_query_split",),
    ("per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges", "multi_query_split"),
)


def scheduled(*values):
    """A case of the scheduled form."""
    return pytest.param(*values, marks=pytest.mark.long)


def judge(cache, batch: Batch, attend_batch, **keywords):
    """Write and attend under the gate; the report of each must be clean."""
    wrote = run_write(lambda: write(cache, batch.k, batch.v, batch.slots), batch, cache.view)
    assert wrote.ok, wrote.failures

    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        result = attend_batch(cache, batch, out=out, return_lse=lse is not None, **keywords)
        if lse is None:
            assert result is out
        else:
            assert result[0] is out
            lse.copy_(result[1])

    report = run_attention(call, batch, cache.view, repeats=1)
    assert report.ok, report.failures


@pytest.mark.parametrize(
    ("backend", "mode", "layout", "kind"),
    [
        *(("cpu", mode, layout, kind) for mode in MODES for layout in known(mode) for kind in KINDS),
        *(
            ("triton", mode, layout, kind)
            for mode in FAMILIES
            for layout in known(mode)
            for kind in KINDS
            if layout == str(default(mode))
        ),
        *(
            scheduled("triton", mode, layout, "mixed")
            for mode in FAMILIES
            for layout in known(mode)
            if layout != str(default(mode))  # in which the kernels' own tests cut contexts
        ),
        *(scheduled("triton", mode, "inline.1", "mixed") for mode in MODES if mode not in FAMILIES),
    ],
    indirect=["backend"],
)
def test_every_kind_of_batch_is_right_in_every_layout(backend, mode, layout, kind, cache_for, attend_batch):
    batch = build(kind, head_size=96, contexts=SHORT, layout=LayoutId.parse(layout), inputs=("normal", "channel30"))
    judge(cache_for(backend, mode, batch, layout=layout), batch, attend_batch)


@pytest.mark.parametrize(
    ("backend", "mode", "features", "kind"),
    [
        *(("cpu", mode, features, kind) for mode in MODES for features in FEATURES for kind in KINDS),
        *(("triton", mode, features, "decode") for mode in FAMILIES for features in FEATURES[-2:]),
        *(("triton", mode, FEATURES[-1], "mixed") for mode in FAMILIES),
        *(scheduled("triton", mode, FEATURES[-1], "mixed") for mode in MODES if mode not in FAMILIES),
    ],
    indirect=["backend"],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_every_feature_is_right_in_every_mode(backend, mode, features, kind, cache_for, attend_batch):
    contexts, window = ((17, 40), 5) if backend == "triton" else ((1, 17, 130), 100)
    batch = build(kind, head_size=40, contexts=contexts, inputs=("normal",), features=features, window=window)
    judge(cache_for(backend, mode, batch), batch, attend_batch)


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("mode", [Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD])
def test_both_fp8_types_of_plain_torch(mode, fp8, cache_for, attend_batch):
    batch = build("mixed", head_size=64, contexts=SHORT)
    judge(cache_for("cpu", mode, batch, fp8=fp8), batch, attend_batch)


@pytest.mark.parametrize(("dtype", "page", "group", "kv_heads"), [
    ("bf16", 544, 1, 3),
    ("fp16", 48, 5, 2),
    ("fp32", 16, 8, 1),
    ("bf16", 16, 71, 1),
])  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_dtypes_pages_and_groups_of_plain_torch(mode, dtype, page, group, kv_heads, cache_for, attend_batch):
    batch = build("mixed", head_size=72, contexts=SHORT, dtype=dtype, page=page, group=group, kv_heads=kv_heads)
    judge(cache_for("cpu", mode, batch), batch, attend_batch)


@pytest.mark.parametrize("head_size", [32, 40, 64, 80, 104, 112, 128, 160, 192, 256, 504, 512])
@pytest.mark.parametrize("mode", MODES)
def test_head_sizes_of_plain_torch(mode, head_size, cache_for, attend_batch):
    batch = build("mixed", head_size=head_size, contexts=SHORT)
    judge(cache_for("cpu", mode, batch), batch, attend_batch)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("mode", MODES)
def test_long_contexts_of_plain_torch(mode, kind, cache_for, attend_batch):
    batch = build(kind, head_size=64, contexts=(1024, 4097), kv_heads=1, group=2)
    judge(cache_for("cpu", mode, batch), batch, attend_batch)


@pytest.mark.parametrize("mode", MODES)
def test_small_steps_of_plain_torch_give_the_same(mode, cache_for, attend_batch):
    """Rows of one step and steps of one sequence: neither the write's nor the attention's cutting may show."""
    batch = build("mixed", head_size=40, contexts=SHORT)
    judge(cache_for("cpu", mode, batch, rows=3, scores=200), batch, attend_batch)


@BOTH
def test_strided_inputs_with_dirt_between_are_right(backend, mode, cache_for, attend_batch):
    batch = build("mixed", head_size=40, contexts=(1, 17), inputs=("normal",)).strided()
    judge(cache_for(backend, mode, batch), batch, attend_batch)


@BOTH
def test_a_strided_output_is_filled_and_its_neighbours_are_not(backend, mode, cache_for, attend_batch):
    batch = build("mixed", head_size=40, contexts=(1, 17), inputs=("normal",))
    cache = cache_for(backend, mode, batch)
    write(cache, batch.k, batch.v, batch.slots)
    tokens, heads, width = batch.q.shape
    wide = torch.full((tokens, heads + 1, width + 8), 7.0, dtype=torch.bfloat16)

    attend_batch(cache, batch, out=wide[:, :heads, :width])

    assert torch.equal(wide[:, :heads, :width], attend_batch(cache, batch))
    assert (wide[:, heads:] == 7).all()
    assert (wide[:, :, width:] == 7).all()


@pytest.fixture
def spoil(cache_for, attend_batch):
    """Return a function: one value of V becomes non-finite; gives the outputs without and with it."""

    def run(backend: str, mode: str, value: float) -> tuple[torch.Tensor, torch.Tensor]:
        batch = build("prefill", head_size=64, contexts=(20, 9), inputs=("normal",), padding=0)
        outputs = []
        for last in (0.0, value):
            batch.v[int((batch.row_sequence == 0).nonzero()[11]), 1, 5] = last
            cache = cache_for(backend, mode, batch)
            write(cache, batch.k, batch.v, batch.slots)
            outputs.append(attend_batch(cache, batch))
        return outputs[0], outputs[1]

    return run


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@BOTH
def test_a_non_finite_row_touches_no_other_sequence_or_head(backend, mode, value, spoil):
    right, found = spoil(backend, mode, value)

    assert torch.equal(found[20:], right[20:])
    assert torch.equal(found[:, :4], right[:, :4])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@BOTH
def test_a_non_finite_row_shows_in_the_queries_that_see_it_and_in_no_other(backend, mode, value, spoil):
    right, found = spoil(backend, mode, value)

    spoiled = torch.zeros(found.shape[:2], dtype=torch.bool)
    spoiled[11:20, 4:] = True  # from its token on, the group of its KV head
    assert torch.equal(~found.isfinite().all(-1), spoiled)
    torch.testing.assert_close(found[~spoiled], right[~spoiled], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_calls_give_the_same_bytes_and_bits(mode, cache_for, attend_batch):
    batch = build("mixed", head_size=96, contexts=(1, 17, 300))
    results = []
    for _ in range(10):
        cache = cache_for("cpu", mode, batch)
        # Memory of another alignment each time: a matrix product must not see where its operands lie.
        shifted = torch.empty(batch.q.numel() + 7, dtype=batch.q.dtype)[len(results) % 7 :][: batch.q.numel()]
        shifted = shifted.view(batch.q.shape).copy_(batch.q)
        write(cache, batch.k, batch.v, batch.slots)
        results.append((cache.buffer, attend_batch(cache, batch), attend_batch(cache, batch, out=shifted)))

    assert all(torch.equal(one, first) for result in results for one, first in zip(result, results[0], strict=True))
    assert torch.equal(results[0][1], results[0][2])
