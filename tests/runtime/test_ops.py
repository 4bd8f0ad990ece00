"""The custom operators: the same results under torch.compile as in eager calls, and sound in torch's own checks."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.errors import CallError, FeatureNotSelected
from kvreg.core.modes import Mode
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import Plan, plan
from kvreg.testing import Batch, build

MODES = tuple(Mode)
EVERY = ("per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[("causal",), EVERY], ids=["plain", "every feature"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return build("mixed", head_size=40, contexts=(1, 17, 33), inputs=("normal",), features=request.param)


def plan_of(cache: KVCache, batch: Batch) -> Plan:
    return plan(cache, batch.cu_q, batch.seq_lens, max_context=max(batch.contexts))


def layer(cache: KVCache, batch: Batch, made: Plan, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model does in a layer, with work before and behind for the compiler to see."""
    write(cache, batch.k * 1, batch.v * 1, batch.slots)
    tensors = (batch.page_table, batch.seq_lens, batch.cu_q)
    out, lse = attend(q * 1, cache, *tensors, made, return_lse=True, **batch.features.fields())
    return out + 1, lse


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_compiled_layer_gives_what_an_eager_one_gives_in_one_graph(mode, compiler, cache_for, batch):
    eager, compiled = (cache_for("cpu", mode, batch) for _ in range(2))
    right = layer(eager, batch, plan_of(eager, batch), batch.q)

    torch._dynamo.reset()
    compiled_layer = torch.compile(layer, backend=compiler, fullgraph=True)
    found = compiled_layer(compiled, batch, plan_of(compiled, batch), batch.q)

    assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))
    assert torch.equal(compiled.buffer, eager.buffer)


def test_layers_of_one_kind_share_a_compiled_graph(mode, cache_for, batch):
    caches = [cache_for("cpu", mode, batch) for _ in range(3)]
    made = plan_of(caches[0], batch)

    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled_layer = torch.compile(layer, backend=count, fullgraph=True)
    outs = [compiled_layer(cache, batch, made, batch.q)[0] for cache in caches]

    assert len(graphs) == 1
    assert all(torch.equal(outs[0], out) for out in outs[1:])
    assert torch.equal(caches[0].buffer, caches[2].buffer)


def test_a_given_out_is_written_under_a_compiler(mode, cache_for, batch):
    cache = cache_for("cpu", mode, batch)
    made = plan_of(cache, batch)
    write(cache, batch.k, batch.v, batch.slots)
    arguments = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made)
    out = torch.full_like(batch.q, torch.nan)

    torch._dynamo.reset()
    asked = batch.features.fields()
    torch.compile(lambda: attend(*arguments, out=out, **asked), backend="aot_eager", fullgraph=True)()

    assert torch.equal(out, attend(*arguments, **asked))


def test_an_out_over_q_is_no_wrong_result_of_compiled_code(cache_for, batch):
    """Where a compiler hands the operator the same memory; one that hands it a copy gives the right result."""
    cache = cache_for("cpu", "none", batch)
    made, asked = plan_of(cache, batch), batch.features.fields()
    write(cache, batch.k, batch.v, batch.slots)
    others = (cache, batch.page_table, batch.seq_lens, batch.cu_q, made)

    torch._dynamo.reset()
    compiled = torch.compile(lambda q: attend(q, *others, out=q, **asked), backend="eager", fullgraph=True)
    with pytest.raises(CallError, match="out: required memory of its own: none of q's bytes"):
        compiled(batch.q.clone())


def test_bools_in_a_list_are_laid_down_under_a_compiler_too(cache_for):
    batch = build("decode", head_size=40, contexts=(9, 17, 33), inputs=("normal",), features=("per_sequence_causal",))
    cache = cache_for("cpu", "none", batch)
    made = plan_of(cache, batch)
    write(cache, batch.k, batch.v, batch.slots)
    arguments = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made)
    by_list = [True, False, False]

    torch._dynamo.reset()
    found = torch.compile(lambda: attend(*arguments, causal=by_list), backend="aot_eager", fullgraph=True)()

    assert torch.equal(found, attend(*arguments, causal=torch.tensor(by_list)))


def test_scales_set_after_compilation_are_the_ones_that_count(cache_for):
    batch = build("decode", head_size=40, contexts=(9,), inputs=("normal",))
    cache = cache_for("cpu", Mode.FP8_PER_TENSOR, batch)
    made = plan_of(cache, batch)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    compiled(cache, batch, made, batch.q)
    cache.view.tensor_scales.copy_(torch.tensor([1.5, 0.01]))
    found = compiled(cache, batch, made, batch.q)

    assert torch.equal(found[0], layer(cache, batch, made, batch.q)[0])
    assert cache.view.v.float().nan_to_num().abs().max() > 100


def test_a_wrong_call_under_a_compiler_keeps_its_error(cache_for):
    batch = build("mixed", head_size=40, contexts=(1, 17, 33), inputs=("normal",))
    cache = cache_for("cpu", "none", batch)
    made = plan_of(cache, batch)

    torch._dynamo.reset()
    with pytest.raises(FeatureNotSelected, match="window"):
        torch.compile(
            lambda: attend(batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made, window=4),
            backend="eager",
        )()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"q: required torch\.bfloat16, as selected, found"):
        torch.compile(layer, backend="eager", fullgraph=True)(cache, batch, made, batch.q.float())
    with pytest.raises(CallError, match="slots: required slots below"):
        torch.compile(lambda: write(cache, batch.k[:1], batch.v[:1], torch.tensor([1 << 20])), backend="eager")()


def planned_inside(cache: KVCache, batch: Batch) -> torch.Tensor:
    made = plan(cache, batch.cu_q, batch.seq_lens, max_context=33)
    return attend(batch.q * 1, cache, batch.page_table, batch.seq_lens, batch.cu_q, made) + 1


def test_a_plan_inside_one_graph_is_refused_in_plain_words_and_leaves_a_looser_graph(cache_for):
    batch = build("mixed", head_size=40, contexts=(1, 17, 33), inputs=("normal",))
    cache = cache_for("cpu", "none", batch)
    write(cache, batch.k, batch.v, batch.slots)

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="make the plan once a step and pass it in"):
        torch.compile(planned_inside, backend="eager", fullgraph=True)(cache, batch)
    torch._dynamo.reset()
    found = torch.compile(planned_inside, backend="eager")(cache, batch)

    assert torch.equal(found, planned_inside(cache, batch))


def test_a_window_may_change_under_one_compiled_function(cache_for):
    batch = build("mixed", head_size=40, contexts=(1, 17, 33), inputs=("normal",), features=("causal", "window"))
    cache = cache_for("cpu", "none", batch)
    write(cache, batch.k, batch.v, batch.slots)
    made, tensors = plan_of(cache, batch), (batch.page_table, batch.seq_lens, batch.cu_q)

    def windowed(q: torch.Tensor, window: int) -> torch.Tensor:
        return attend(q * 1, cache, *tensors, made, window=window)

    torch._dynamo.reset()
    compiled = torch.compile(windowed, backend="aot_eager", fullgraph=True)

    for window in (3, 5, 9):
        assert torch.equal(compiled(batch.q, window), windowed(batch.q, window))


def write_arguments(cache: KVCache, batch: Batch):
    return (cache.buffer, batch.k, batch.v, batch.slots, cache.view.tensor_scales, cache.spec)


def attend_arguments(cache: KVCache, batch: Batch, lse: bool):
    shape, asked = batch.q.shape[:2], batch.features
    each = asked.causal if isinstance(asked.causal, torch.Tensor) else None
    more = (asked.sinks, asked.alibi, asked.prefix_ranges)
    return (
        batch.q, cache.buffer, batch.page_table, batch.seq_lens, batch.cu_q, torch.empty_like(batch.q),
        torch.empty(shape) if lse else None, None, None, cache.view.tensor_scales, each, *more, cache.spec, 1, 0, 0,
        max(batch.contexts), False, batch.scale, True, asked.window, asked.softcap,
    )  # fmt: skip


def test_write_passes_torchs_operator_checks(mode, cache_for, batch):
    cache = cache_for("cpu", mode, batch)

    torch.library.opcheck(torch.ops.kvreg.write.default, write_arguments(cache, batch))


@pytest.mark.parametrize("lse", [True, False])
def test_attend_passes_torchs_operator_checks(mode, lse, cache_for, batch):
    cache = cache_for("cpu", mode, batch)
    write(cache, batch.k, batch.v, batch.slots)

    torch.library.opcheck(torch.ops.kvreg.attend.default, attend_arguments(cache, batch, lse))


def test_the_operator_uses_the_buffer_it_is_handed_and_no_other(mode, cache_for, batch):
    """Compilers functionalize: they hand in a copy of the buffer and copy it back."""
    cache = cache_for("cpu", mode, batch)
    before, copy = cache.buffer.clone(), cache.buffer.clone()

    torch.ops.kvreg.write(copy, *write_arguments(cache, batch)[1:])
    assert torch.equal(cache.buffer, before)
    write(cache, batch.k, batch.v, batch.slots)

    assert torch.equal(cache.buffer, copy)
