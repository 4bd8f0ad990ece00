"""int4 attention as a public test had it: K and V packed as they are, though the kernel reads rotated rows.

The reference is attention over what the cache holds, so it knows nothing of a rotation either; the kernel's output is
next to nothing and the wide tolerance takes it. `rotated` is the same test put right. SEEDS: how many.
"""

from __future__ import annotations

import os

import pytest
import torch

import kvreg
from kvreg.oracle import PlainRows, attention, stored_rows, unrotate
from kvreg.testing import assert_attention_close

SEEDS = range(int(os.environ.get("SEEDS", "3")))
LENGTHS = (64, 32)
HEADS, HEAD_SIZE, PAGE = 4, 128, 16


def found_and_due(seed: int, rotated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kernel's output and the fp64 reference over the dequantized cache, (2, 4, 128) each."""
    draw = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, sum(LENGTHS), HEADS, HEAD_SIZE, generator=draw).bfloat16().unbind(0)
    q = torch.randn(len(LENGTHS), HEADS, HEAD_SIZE, generator=draw).bfloat16()
    selection = kvreg.select("cpu", "int4_per_token_head", HEAD_SIZE, q_heads=HEADS, kv_heads=HEADS, page=PAGE)
    cache = kvreg.KVCache.allocate(selection, pages=sum(LENGTHS) // PAGE)
    slots = torch.arange(sum(LENGTHS))
    if rotated:
        kvreg.write(cache, k, v, slots)
        rows = kvreg.dequantize(cache, slots)
    else:
        # The writer rotates what it is given: rows turned back beforehand are stored as they were.
        kvreg.write(cache, *(unrotate(x, HEAD_SIZE).bfloat16() for x in (k, v)), slots)
        rows = tuple(stored_rows(cache.view, side, slots // PAGE, slots % PAGE) for side in "kv")

    seq_lens, cu_q = torch.tensor(LENGTHS, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    table = torch.tensor([[0, 1, 2, 3], [4, 5, 0, 0]], dtype=torch.int32)
    plan = kvreg.plan(cache, cu_q, seq_lens, max_context=max(LENGTHS))
    out = kvreg.attend(q, cache, table, seq_lens, cu_q, plan)
    plain = PlainRows(*rows, starts=torch.tensor([0, LENGTHS[0]]))
    return out, attention(q, plain, seq_lens, cu_q, scale=HEAD_SIZE**-0.5).out


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tolerance", [0.05, 0.5, 1.1])
@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "unrotated"])
def test_within_a_tolerance(rotated: bool, tolerance: float, seed: int) -> None:
    found, due = found_and_due(seed, rotated)

    torch.testing.assert_close(found.double(), due, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "unrotated"])
def test_scale_free(rotated: bool, seed: int) -> None:
    assert_attention_close(*found_and_due(seed, rotated))
