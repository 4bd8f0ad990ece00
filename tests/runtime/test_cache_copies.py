"""Copies of a cache, in memory and in files."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import dequantize

SLOTS = torch.tensor([0, 5, 16, 47])


def loaded(cache: KVCache) -> KVCache:
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache)), loaded],
                         ids=["deepcopy", "pickle", "torch.save"])  # fmt: skip
def test_a_copy_holds_the_rows_and_serves_the_same_plans(copied, mode, select):
    scales = (0.5, 2.0) if mode is Mode.FP8_PER_TENSOR else None
    cache = KVCache.allocate(select("cpu", mode, 40), 3, tensor_scales=scales)
    write(cache, *torch.randn(2, 4, cache.kind.kv_heads, 40, dtype=cache.dtype), SLOTS)

    again = copied(cache)

    assert again.buffer.data_ptr() != cache.buffer.data_ptr()
    assert torch.equal(again.buffer, cache.buffer)
    assert all(torch.equal(*rows) for rows in zip(dequantize(again, SLOTS), dequantize(cache, SLOTS), strict=True))
    assert (again.kind is cache.kind, again.spec, repr(again)) == (True, cache.spec, repr(cache))


def test_a_shallow_copy_shares_the_memory(select):
    cache = KVCache.allocate(select(), 3)

    assert copy.copy(cache).buffer.data_ptr() == cache.buffer.data_ptr()
