"""What a call does to a card, seen on tensors without values: reading one raises, and torch calls are noted."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvreg.core.modes import Mode
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.launchers import load
from kvreg.runtime.pages import convert, copy_pages, dequantize
from kvreg.runtime.plan import plan
from kvreg.runtime.tensor_scales import tensor_scales


class Noted(TorchDispatchMode):
    """Notes the name of every torch operator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Silent:
    """A launcher that takes three splits and launches nothing."""

    def splits(self, *arguments) -> int:
        return 3

    def chunk(self, config) -> int:
        return 32

    def __call__(self, *arguments) -> None:
        pass


@pytest.fixture
def cache(select, monkeypatch) -> Iterator[KVCache]:
    """A cache on the device of tensors without values, whose kernels do nothing."""
    module = types.ModuleType("kvreg_silent")
    module.launcher = Silent()
    monkeypatch.setitem(sys.modules, "kvreg_silent", module)
    load.cache_clear()
    selection = select()
    result = selection.result
    ops = {op: replace(chosen, launcher="kvreg_silent:launcher") for op, chosen in result.ops.items()}
    made = KVCache.allocate(replace(selection, results=(replace(result, ops=ops),)), 8)
    yield KVCache(made.selection, made.geometry, made.buffer.to("meta"))
    load.cache_clear()


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rows(count: int, heads: int) -> torch.Tensor:
    return torch.empty((count, heads, 96), dtype=torch.bfloat16, device="meta")


def test_a_plan_allocates_its_workspace_and_does_nothing_else(cache):
    cu_q, seq_lens = ints(4), ints(3)

    with Noted() as noted:
        plan(cache, cu_q, seq_lens, max_context=64)

    assert noted.names == ["empty", "empty"]


def test_a_write_allocates_nothing_and_reads_nothing(cache):
    k, v, slots = rows(5, 2), rows(5, 2), ints(4, dtype=torch.int64)

    with Noted() as noted:
        write(cache, k, v, slots)

    assert noted.names == []


@pytest.mark.parametrize("queries", [3, 9], ids=["decode", "prefill"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_an_attention_allocates_its_results_only(batch_invariant, queries, cache):
    made = plan(cache, ints(4), ints(3), max_context=64, batch_invariant=batch_invariant)
    arguments = (rows(queries, 8), cache, ints(3, 4), ints(3), ints(4), made)
    out = rows(queries, 8)

    with Noted() as given:
        attend(*arguments, out=out)
    with Noted() as new:
        attend(*arguments, return_lse=True)

    assert given.names == []
    assert new.names == ["empty_like", "empty"]


def test_features_allocate_nothing_but_ranges_cut_off_and_a_mask_that_came_as_a_list(cache):
    every = ("causal", "per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges")
    cache.kind = replace(cache.kind, features=every)
    made = plan(cache, ints(4), ints(3), max_context=64)
    arguments = (rows(3, 8), cache, ints(3, 4), ints(3), ints(4), made)
    by_head = torch.empty(8, device="meta")
    asked = {"window": 9, "softcap": 3.0, "sinks": by_head, "alibi": by_head, "prefix_ranges": ints(3, 2, 2)}
    out, mask = rows(3, 8), ints(3, dtype=torch.bool)

    with Noted() as by_tensor:
        attend(*arguments, out=out, causal=mask, **asked)
    with Noted() as by_list:
        attend(*arguments, out=out, causal=[True, False, True], **asked)

    cut = ["unsqueeze", "unsqueeze", "minimum"]
    assert by_tensor.names == cut
    assert set(by_list.names) == {"zeros", "slice", "fill_", *cut}


def test_scales_of_a_tensor_are_made_where_they_lie(cache):
    kind = replace(cache.kind, mode=Mode.FP8_PER_TENSOR)

    with Noted() as noted:
        tensor_scales(kind, (0.5, 2.0), torch.device("meta"))

    assert set(noted.names) == {"full", "slice", "fill_"}


def test_copying_and_reading_back_wait_for_nothing(cache):
    pages, slots = ints(2), ints(6)

    with Noted() as noted:
        copy_pages(cache, pages, pages)
        k, v = dequantize(cache, slots)
        moved = convert(cache, "inline.1")

    assert k.shape == v.shape == (6, 2, 96)
    assert moved.device.type == "meta"
    assert not {"_local_scalar_dense", "nonzero", "item", "masked_select"} & set(noted.names)
