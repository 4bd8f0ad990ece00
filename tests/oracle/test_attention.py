"""The fp64 reference against attention written row by row, and its bounds on memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvreg.core.layouts import INLINE
from kvreg.core.modes import Mode
from kvreg.oracle import PlainRows, Reference, attention, dequantize, over_cache
from kvreg.testing import Kind, build


def by_rows(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    cu_q: list[int],
    scale: float,
    causal: list[bool],
) -> Reference:
    """One (token, query head) at a time, softmax without any batching."""
    tokens, q_heads, d = q.shape
    out = torch.zeros((tokens, q_heads, d), dtype=torch.float64)
    lse = torch.full((tokens, q_heads), -math.inf, dtype=torch.float64)
    spread = torch.zeros((tokens, q_heads), dtype=torch.float64)
    for s, (k, v) in enumerate(zip(keys, values, strict=True)):
        queries = cu_q[s + 1] - cu_q[s]
        for i in range(queries):
            visible = len(k) - queries + i + 1 if causal[s] else len(k)
            for h in range(q_heads):
                if visible <= 0:
                    continue
                head = h * k.shape[1] // q_heads
                ks, vs = k[:visible, head].double(), v[:visible, head].double()
                scores = ks @ q[cu_q[s] + i, h].double() * scale
                lse[cu_q[s] + i, h] = torch.logsumexp(scores, 0)
                p = torch.softmax(scores, 0)
                out[cu_q[s] + i, h] = p @ vs
                spread[cu_q[s] + i, h] = math.sqrt(float((p**2 * (vs**2).sum(1)).sum()))
    return Reference(out, lse, spread)


def close(found: Reference, due: Reference) -> None:
    torch.testing.assert_close(found.out, due.out, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.lse, due.lse, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.spread, due.spread, rtol=1e-11, atol=1e-12)


LENGTHS = [17, 0, 1, 33, 5, 0, 64, 2]
QUERIES = [5, 1, 1, 33, 0, 3, 2, 4]  # the last one has more queries than keys: two rows have a negative position


def ragged(dtype: torch.dtype, heads: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    generator = torch.Generator().manual_seed(heads)
    cu_q = [sum(QUERIES[:i]) for i in range(len(QUERIES) + 1)]
    q = torch.randn((cu_q[-1] + 2, heads * group, 40), generator=generator).to(dtype)
    k, v = torch.randn((2, sum(LENGTHS), heads, 40), generator=generator).to(dtype)
    return q, k, v, cu_q


@pytest.mark.parametrize("causal", [True, False, [True, False] * 4], ids=["causal", "full", "by_sequence"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "group"), [(1, 1), (2, 7), (3, 4)])
@pytest.mark.parametrize("budget", [None, 20_000], ids=["whole", "cut"])
def test_ragged_batches_equal_attention_row_by_row(
    causal: bool | list[bool], dtype: torch.dtype, heads: int, group: int, budget: int | None
) -> None:
    q, k, v, cu_q = ragged(dtype, heads, group)
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    parts = [(slice(a, a + n)) for a, n in zip(starts, LENGTHS, strict=True)]
    each = causal if isinstance(causal, list) else [causal] * len(LENGTHS)

    found = attention(q, PlainRows(k, v, torch.tensor(starts)), LENGTHS, cu_q, scale=0.3, causal=causal, budget=budget)

    close(found, by_rows(q, [k[p] for p in parts], [v[p] for p in parts], cu_q, 0.3, each))


def test_rows_that_see_no_key_and_rows_of_no_sequence_are_zeros() -> None:
    q, k, v, cu_q = ragged(torch.float32, 2, 2)
    starts = torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS))])

    found = attention(q, PlainRows(k, v, starts), LENGTHS, cu_q, scale=1.0)

    keyless = [5, *range(cu_q[5], cu_q[6]), cu_q[7], cu_q[7] + 1, cu_q[8], cu_q[8] + 1]
    assert found.out[keyless].abs().max() == 0
    assert (found.lse[keyless] == -math.inf).all()
    others = [i for i in range(len(q)) if i not in keyless]
    assert (found.lse[others] > -math.inf).all()


def test_lengths_may_be_tensors_or_host_integers() -> None:
    q, k, v, cu_q = ragged(torch.float32, 2, 2)
    rows = PlainRows(k, v, torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS))]))

    a = attention(q, rows, LENGTHS, cu_q, scale=1.0)
    b = attention(q, rows, torch.tensor(LENGTHS, dtype=torch.int32), torch.tensor(cu_q, dtype=torch.int32), scale=1.0)

    assert torch.equal(a.out, b.out)


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.INT4_PER_TOKEN_HEAD], ids=str)
def test_paged_attention_is_attention_over_the_dequantized_rows(mode: Mode) -> None:
    batch = build("mixed", head_size=72, group=3, contexts=(1, 17, 50), layout=INLINE, page=32)
    cache = batch.filled(mode, lead=16, gap=64)
    keys, values = [], []
    for s, context in enumerate(batch.contexts):
        position = torch.arange(context)
        k, v = dequantize(cache, batch.page_table[s].long()[position // 32] * 32 + position % 32)
        keys.append(k)
        values.append(v)

    found = over_cache(batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, scale=batch.scale)

    close(found, by_rows(batch.q, keys, values, list(batch.cu_q_host), batch.scale, [True] * len(keys)))


def test_what_lies_behind_a_sequence_is_never_read() -> None:
    batch = build("decode", head_size=32, contexts=(1, 17, 63), inputs=("normal",))
    clean = batch.filled(Mode.INT4_PER_TOKEN_HEAD, fill=0)
    dirty = batch.filled(Mode.INT4_PER_TOKEN_HEAD, fill=0xFF)

    a, b = (
        over_cache(batch.q, c, batch.page_table, batch.contexts, batch.cu_q_host, scale=1.0) for c in (clean, dirty)
    )

    assert torch.equal(a.out, b.out)


def test_a_non_finite_value_row_reaches_only_the_rows_that_see_it() -> None:
    q, k, v = torch.randn((4, 2, 32)), torch.randn((9, 1, 32)), torch.randn((9, 1, 32))
    v[7] = math.nan  # the queries stand at positions 5 to 8

    found = attention(q, PlainRows(k, v, torch.tensor([0])), [9], [0, 4], scale=0.2)
    without = attention(q[:2], PlainRows(k[:7], v[:7], torch.tensor([0])), [7], [0, 2], scale=0.2)

    torch.testing.assert_close(found.out[:2], without.out)
    assert found.out[2:].isnan().all()


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            # Views and expanded tensors take no memory of their own; their storage counts once, where it is made.
            if isinstance(leaf, torch.Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result


EVERY = ("window", "softcap", "sinks", "alibi", "prefix_ranges", "per_sequence_causal")


@pytest.mark.parametrize("features", [("causal",), EVERY], ids=["causal", "every"])
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_intermediate_values_stay_within_the_budget(kind: Kind, features: tuple[str, ...]) -> None:
    batch = build(kind, head_size=32, group=2, contexts=(700,), inputs=("normal",), seeds=range(24), features=features)
    cache = batch.filled(Mode.INT4_PER_TOKEN_HEAD)
    budget = 3 << 20
    result = batch.q.numel() * 8 + batch.q.shape[1] * 32 * 8

    with Largest() as seen:
        over_cache(
            batch.q,
            cache,
            batch.page_table,
            batch.contexts,
            batch.cu_q_host,
            scale=batch.scale,
            budget=budget,
            **batch.features.fields(),
        )

    whole = 24 * 700 * 2 * 32 * 8
    assert whole > budget
    assert seen.bytes <= max(budget, result)
    assert seen.bytes < whole


def test_one_long_sequence_is_cut_by_its_query_rows() -> None:
    q, (k, v) = torch.randn((300, 8, 32)), torch.randn((2, 300, 1, 32))
    rows, budget = PlainRows(k, v, torch.tensor([0])), 2 << 20

    with Largest() as seen:
        found = attention(q, rows, [300], [0, 300], scale=0.2, budget=budget)

    assert seen.bytes <= budget < 300 * 300 * 8 * 8
    close(found, attention(q, rows, [300], [0, 300], scale=0.2))
