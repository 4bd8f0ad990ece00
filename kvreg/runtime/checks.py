"""Every rule that a call's arguments must keep, looked at before any launch.

Shapes, dtypes, devices and strides are checked on every device and wait for none. Values (slots, page numbers,
lengths) lie in device memory; kvreg.runtime.values checks those where the host can see them.
"""

from __future__ import annotations

from typing import Any

import torch

from kvreg.core.errors import CallError, WrongCache, WrongDtype, WrongShape, shown, wrong
from kvreg.core.scalars import FLOAT32, real, whole
from kvreg.runtime import tensors
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import Kind, Step


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


def write_call(cache: Any, k: Any, v: Any, slots: Any) -> None:
    """Raise unless `write(cache, k, v, slots)` may be launched."""
    is_cache(cache)
    kind, device = cache.kind, cache.device
    tensors.rows("k", k, kind.kv_heads, kind, device)
    tensors.rows("v", v, kind.kv_heads, kind, device)
    if v.shape[0] != k.shape[0]:
        raise WrongShape(
            wrong(
                "v",
                required=f"{k.shape[0]} rows, as k has",
                found=v.shape[0],
                remedy="pass K and V of the same tokens",
            )
        )
    count = tensors.indexes("slots", slots, device)
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
    n_seqs = tensors.indexes("seq_lens", seq_lens, device, (torch.int32,))
    offsets = tensors.indexes("cu_q", cu_q, device, (torch.int32,))
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


def flag(name: str, value: object) -> None:
    """Raise CallError unless `value` is a bool: of anything else, "False" too, Python makes one without a word."""
    if not isinstance(value, bool):
        raise CallError(wrong(name, required="True or False", found=shown(value), remedy="pass a bool"))


def attend_call(
    q: Any, cache: Any, page_table: Any, seq_lens: Any, cu_q: Any, plan: Any, out: Any, scale: Any, return_lse: Any
) -> None:
    """Raise unless the attention may be launched; features and the memory of `out` have their own checks."""
    is_cache(cache)
    kind, device = cache.kind, cache.device
    tensors.rows("q", q, kind.q_heads, kind, device)
    n_seqs = batch(cu_q, seq_lens, device)
    _plan_fits(plan, kind, n_seqs)
    tensors.placed("page_table", page_table, device)
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
        tensors.rows("out", out, kind.q_heads, kind, device)
        if out.shape[0] != q.shape[0]:
            raise WrongShape(
                wrong(
                    "out", required=f"{q.shape[0]} rows, as q has", found=out.shape[0], remedy="pass out shaped like q"
                )
            )
    flag("return_lse", return_lse)
    factor = None if scale is None else real(scale)
    if scale is not None and (factor is None or not abs(factor) <= FLOAT32[1]):
        raise CallError(
            wrong(
                "scale",
                required="a finite number on the host, as float32 holds it",
                found=shown(scale) if isinstance(scale, (int, float)) else type(scale).__name__,
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
