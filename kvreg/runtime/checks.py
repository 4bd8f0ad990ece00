"""Every rule that a call's arguments must keep, looked at before any launch.

Shapes, dtypes, devices and strides are checked on every device and wait for none. Values (slots, page numbers,
lengths) lie in device memory; kvreg.runtime.values checks those where the host can see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kvreg.core.errors import CallError, WrongCache, WrongDevice, WrongDtype, WrongShape, wrong
from kvreg.core.scalars import real, whole
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import MOST_REACH, Kind, Step
from kvreg.runtime.overlaps import require_own_memory

_INDEX_DTYPES = (torch.int32, torch.int64)


def is_cache(cache: object) -> None:
    """Raise WrongCache unless `cache` is a KVCache."""
    if not isinstance(cache, KVCache):
        raise WrongCache(
            wrong(
                "cache",
                required="a KVCache",
                found=type(cache).__name__,
                remedy="make one with KVCache.allocate or KVCache.from_buffer",
            )
        )


def tensor(name: str, value: Any, device: Any) -> None:
    """Raise WrongDtype unless `value` is a tensor, WrongDevice unless it lies on `device`."""
    if not isinstance(value, torch.Tensor):
        raise WrongDtype(
            wrong(
                name,
                required="a torch.Tensor",
                found=type(value).__name__,
                remedy="pass a tensor on the cache's device",
            )
        )
    if value.device != device:
        raise WrongDevice(
            wrong(
                name,
                required=f"a tensor on {device}, where the cache lies",
                found=f"one on {value.device}",
                remedy=f"move it: {name}.to({str(device)!r})",
            )
        )


def rows(name: str, value: Any, heads: int, cache: KVCache) -> None:
    """Raise unless `value` is (rows, heads, head_size) in the model's dtype with adjacent channels."""
    tensor(name, value, cache.device)
    kind, shape, strides = cache.kind, value.shape, value.stride()
    if len(shape) != 3 or shape[1] != heads or shape[2] != kind.head_size:
        raise WrongShape(
            wrong(
                name,
                required=f"shape (rows, {heads}, {kind.head_size})",
                found=tuple(shape),
                remedy="reshape it, or select for these head counts and this head size",
            )
        )
    if value.dtype != kind.torch_dtype:
        raise WrongDtype(
            wrong(
                name,
                required=f"{kind.torch_dtype}, as selected",
                found=value.dtype,
                remedy=f"convert it with {name}.to({kind.torch_dtype}), or select for the dtype that you have",
            )
        )
    if strides[2] != 1 and value.numel():
        raise WrongShape(
            wrong(
                name,
                required="stride 1 on the last axis",
                found=f"stride {strides[2]}",
                remedy=f"pass {name}.contiguous()",
            )
        )
    if strides[1] * (heads - 1) > MOST_REACH:
        raise WrongShape(
            wrong(
                name,
                required=f"heads at most {MOST_REACH} elements apart",
                found=strides[1] * (heads - 1),
                remedy=f"pass {name}.contiguous()",
            )
        )


def indexes(name: str, value: Any, device: Any, dtypes: Sequence[Any] = _INDEX_DTYPES) -> int:
    """Return how many there are; raise unless `value` is a one-dimensional tensor of adjacent whole numbers."""
    tensor(name, value, device)
    if value.dtype not in dtypes:
        raise WrongDtype(
            wrong(
                name,
                required=" or ".join(str(dtype) for dtype in dtypes),
                found=value.dtype,
                remedy=f"convert it with {name}.to({dtypes[0]})",
            )
        )
    shape = value.shape
    if len(shape) != 1:
        raise WrongShape(wrong(name, required="one dimension", found=f"shape {tuple(shape)}", remedy="flatten it"))
    if shape[0] > 1 and value.stride(0) != 1:
        raise WrongShape(
            wrong(name, required="stride 1", found=f"stride {value.stride(0)}", remedy=f"pass {name}.contiguous()")
        )
    count: int = shape[0]  # a symbol inside torch.compile, which int() would pin
    return count


def write_call(cache: Any, k: Any, v: Any, slots: Any) -> None:
    """Raise unless `write(cache, k, v, slots)` may be launched."""
    is_cache(cache)
    rows("k", k, cache.kind.kv_heads, cache)
    rows("v", v, cache.kind.kv_heads, cache)
    if v.shape[0] != k.shape[0]:
        raise WrongShape(
            wrong(
                "v",
                required=f"{k.shape[0]} rows, as k has",
                found=v.shape[0],
                remedy="pass K and V of the same tokens",
            )
        )
    count = indexes("slots", slots, cache.device)
    if count > k.shape[0]:
        raise WrongShape(
            wrong(
                "slots",
                required=f"at most {k.shape[0]} entries, one for each row of k",
                found=count,
                remedy="cut slots, or pass the missing rows",
            )
        )


def batch(cu_q: Any, seq_lens: Any, device: Any) -> int:
    """Return the number of sequences; raise unless `cu_q` and `seq_lens` describe one batch."""
    n_seqs = indexes("seq_lens", seq_lens, device, (torch.int32,))
    offsets = indexes("cu_q", cu_q, device, (torch.int32,))
    if offsets != n_seqs + 1:
        raise WrongShape(
            wrong(
                "cu_q",
                required=f"{n_seqs + 1} entries, one more than seq_lens has",
                found=offsets,
                remedy="pass the cumulated query lengths, a zero first",
            )
        )
    return n_seqs


def host_count(name: str, value: Any, what: str) -> int:
    """Return a count of the host as an int; raises CallError for a tensor and for what is no whole number."""
    count = None if isinstance(value, torch.Tensor) else whole(value)
    if count is None:
        raise CallError(
            wrong(
                name,
                required="an int on the host",
                found=type(value).__name__,
                remedy=f"pass {what}; a tensor would make the host wait",
            )
        )
    return count


def attend_call(
    q: Any, cache: Any, page_table: Any, seq_lens: Any, cu_q: Any, plan: Any, out: Any, scale: Any
) -> None:
    """Raise unless the attention may be launched; features have their own check."""
    is_cache(cache)
    kind, device = cache.kind, cache.device
    rows("q", q, kind.q_heads, cache)
    n_seqs = batch(cu_q, seq_lens, device)
    _plan_fits(plan, kind, n_seqs)
    tensor("page_table", page_table, device)
    if page_table.dtype != torch.int32:
        raise WrongDtype(
            wrong(
                "page_table",
                required=torch.int32,
                found=page_table.dtype,
                remedy="convert it with page_table.to(torch.int32)",
            )
        )
    shape = page_table.shape
    if len(shape) != 2 or shape[0] != n_seqs:
        raise WrongShape(
            wrong(
                "page_table",
                required=f"shape ({n_seqs}, pages), one row for each sequence",
                found=tuple(shape),
                remedy="pass one row of page numbers for each entry of seq_lens",
            )
        )
    if shape[1] > 1 and page_table.stride(1) != 1:
        raise WrongShape(
            wrong(
                "page_table",
                required="stride 1 on the last axis",
                found=f"stride {page_table.stride(1)}",
                remedy="pass page_table.contiguous()",
            )
        )
    if shape[1] * kind.page < plan.max_context:
        raise WrongShape(
            wrong(
                "page_table",
                required=f"{-(-plan.max_context // kind.page)} pages a row for the plan's max_context of "
                f"{plan.max_context} tokens",
                found=shape[1],
                remedy="widen the table, or plan for a smaller max_context",
            )
        )
    if out is not None:
        rows("out", out, kind.q_heads, cache)
        if out.shape[0] != q.shape[0]:
            raise WrongShape(
                wrong(
                    "out", required=f"{q.shape[0]} rows, as q has", found=out.shape[0], remedy="pass out shaped like q"
                )
            )
        if not torch.compiler.is_compiling() and not out.is_meta:
            require_own_memory(out, q, cache.buffer)
    factor = None if scale is None else real(scale)
    if scale is not None and (factor is None or not math.isfinite(factor)):
        raise CallError(
            wrong(
                "scale",
                required="a finite number on the host",
                found=repr(scale) if isinstance(scale, (int, float)) else type(scale).__name__,
                remedy="pass a float, or leave it out for head_size ** -0.5",
            )
        )


def _plan_fits(plan: Any, kind: Kind, n_seqs: int) -> None:
    made_for = getattr(plan, "kind", None)
    if not isinstance(made_for, Kind):
        raise CallError(
            wrong("plan", required="a Plan", found=type(plan).__name__, remedy="make one a step with kvreg.plan")
        )
    if made_for is not kind and made_for != kind:
        differs = [name for name in Kind.__slots__ if getattr(made_for, name) != getattr(kind, name)]
        name = differs[0]
        mine, theirs = _short(getattr(kind, name), getattr(made_for, name))
        raise WrongCache(
            wrong(
                "plan",
                required=f"one for a cache with {name} {mine}",
                found=f"one for {theirs}",
                remedy="make a plan for each kind of cache",
            )
        )
    if plan.n_seqs != n_seqs:
        raise WrongShape(
            wrong(
                "plan",
                required=f"one for {n_seqs} sequences",
                found=f"one for {plan.n_seqs}",
                remedy="make a plan for this batch, or pad the batch",
            )
        )


def _short(first: Any, second: Any) -> tuple[str, str]:
    """Return two different values as text; steps of one variant with the parameters in which they differ."""
    if not (isinstance(first, Step) and isinstance(second, Step)):
        return str(first), str(second)
    one, other = _parameters(first), _parameters(second)
    names = [name for name in (*one, *other) if one.get(name) != other.get(name)]
    names = list(dict.fromkeys(names)) if first.variant == second.variant else []

    def text(step: Step, values: dict[str, int]) -> str:
        return " ".join([step.variant, *(f"{name}={values.get(name)}" for name in names)])

    return text(first, one), text(second, other)


def _parameters(step: Step) -> dict[str, int]:
    """Return a step's launch parameters by what they are called in a message."""
    return {**step.config, **{f"default {name}": value for name, value in step.default_config.items()}}
