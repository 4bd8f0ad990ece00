"""Rows of "accepted, then crashes or is silently wrong" in vLLM 0.33 that a kernel or the runtime must get right.

Each test names its row; tests/core/test_vllm_rows.py has the rows that select refuses.
"""

from __future__ import annotations

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.gate.run import run_attention, run_write
from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import dequantize
from kvreg.runtime.plan import plan
from kvreg.testing import build

INT4 = "int4_per_token_head"
PER_TOKEN_HEAD = (INT4, "int8_per_token_head", "fp8_per_token_head")


def stored(cache, k, v=None):
    """Write rows to the first slots and return them as the cache gives them back, in fp64."""
    slots = torch.arange(k.shape[0])
    write(cache, k, k if v is None else v, slots)
    return dequantize(cache, slots)[0].double()


@pytest.mark.parametrize("mask", ["non_causal", "per_sequence_causal"])
def test_row_3_int4_sees_what_comes_after_the_query(backend, mask, cache_for, attend_batch):
    batch = build("prefill", head_size=64, contexts=(17, 40), inputs=("normal",), features=(mask,))
    cache = cache_for(backend, INT4, batch)

    assert run_write(lambda: write(cache, batch.k, batch.v, batch.slots), batch, cache.view).ok
    report = run_attention(
        lambda out, lse: attend_batch(cache, batch, out=out), batch, cache.view, repeats=1, with_lse=False
    )

    assert report.ok, report.failures


@pytest.mark.parametrize(("outlier", "error"), [(30.0, 1.0), (60.0, 1.0), (100.0, 1.5), (200.0, 2.5)])
def test_row_6_a_dominating_first_channel_is_not_cut_off(backend, outlier, error, allocate):
    k = torch.randn(16, 2, 128)
    k[:, :, 0] += outlier
    k = k.bfloat16()

    found = stored(allocate(backend, INT4, 128), k)

    # vLLM's writer lost 41 of 100 and 141 of 200 here; the zero point holds 0 and the range, so steps alone are lost.
    assert (found - k.double()).abs().max() <= error


def test_row_7_a_row_whose_rotation_leaves_fp16_is_stored_and_finite(backend, allocate):
    cache = allocate(backend, INT4, 128, dtype="fp16")
    k = torch.full((2, 2, 128), 600.0, dtype=torch.float16)
    k[1] = torch.randn(2, 128) * 2000  # L1 norms of 76800 and about 200000, where fp16 ends at 65504

    found = stored(cache, k)

    assert torch.isfinite(found).all()
    error = (found - k.double()).norm(dim=-1) / k.double().norm(dim=-1)
    assert error.max() <= 0.12


@pytest.mark.parametrize("mode", PER_TOKEN_HEAD)
def test_row_11_a_cache_made_later_over_the_same_memory_leaves_its_scales(backend, mode, allocate):
    first = allocate(backend, mode, 64)
    k = torch.randn(16, 2, 64, dtype=torch.bfloat16)
    before = stored(first, k)
    raw = first.buffer.clone()

    sharing = KVCache.from_buffer(first.selection, first.buffer)

    assert torch.equal(first.buffer, raw)
    assert torch.equal(dequantize(sharing, torch.arange(16))[0].double(), before)


def test_row_12_each_groups_workspace_is_of_its_own_heads(backend, allocate):
    sliding = allocate(backend, INT4, 256, q_heads=32, kv_heads=16)
    full = allocate(backend, INT4, 512, q_heads=32, kv_heads=4)
    cu_q, seq_lens = torch.arange(3, dtype=torch.int32), torch.tensor([100, 60000], dtype=torch.int32)

    for cache, head_size in ((sliding, 256), (full, 512)):
        split = plan(cache, cu_q, seq_lens, max_context=65536).split
        if split.splits > 1:
            assert split.partial_out.shape == (2 * split.splits, 32, head_size)
    if backend == "triton":
        few, many = (plan(each, cu_q, seq_lens, max_context=65536).split.splits for each in (sliding, full))
        assert 1 < few < many  # fewer KV heads leave more units free for splits


@pytest.mark.parametrize("mode", PER_TOKEN_HEAD)
def test_row_13_a_cache_has_not_a_byte_beside_rows_and_scales(mode, allocate):
    for head_size, kv_heads in ((256, 16), (512, 4)):
        cache = allocate("cpu", mode, head_size, q_heads=32, kv_heads=kv_heads, pages=3)
        assert cache.buffer.numel() == 3 * 16 * kv_heads * Mode(mode).bytes_per_token_head(head_size)
