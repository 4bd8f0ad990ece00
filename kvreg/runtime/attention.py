"""write and attend: the two calls that a model makes in every layer.

Both check their arguments first, launch on the tensors' device and wait for nothing, so that they may be captured in
a graph. They compute no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvreg.runtime import checks, features, ops
from kvreg.runtime.cache import KVCache
from kvreg.runtime.launchers import AttendCall
from kvreg.runtime.plan import Plan


def write(cache: KVCache, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Quantize rows of K and V and store row i in slot `slots[i]` of the cache.

    `k`, `v`: (rows, kv_heads, head_size) in the model's dtype, any strides with stride 1 on the last axis. `slots`:
    (n,) int32 or int64 with n <= rows; slot = page number * page size + place in the page. A negative slot is skipped,
    and so are the rows beyond n (padding). No byte of any other slot changes, and the same call stores the same bytes.

    Slots must exist and be named once; that is checked on the cpu only, since elsewhere it would make the host wait.

    Raises WrongCache, WrongShape, WrongDtype, WrongDevice or CallError before anything is stored.
    """
    checks.write_call(cache, k, v, slots)
    if torch.compiler.is_compiling():
        torch.ops.kvreg.write(cache.buffer, k, v, slots, cache.spec)
    else:
        ops.launch_write(cache.geometry, cache.view, k, v, slots)


def attend(
    q: torch.Tensor,
    cache: KVCache,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_q: torch.Tensor,
    plan: Plan,
    *,
    out: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool | Sequence[bool] | torch.Tensor = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    prefix_ranges: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Return the attention of query rows over the cache; with `return_lse` the pair (out, lse).

    `q`: (tokens, q_heads, head_size) in the model's dtype, any strides with stride 1 on the last axis. `page_table`:
    (n_seqs, pages) int32, the pages of each sequence in order; entries beyond its last page are not read. `seq_lens`:
    (n_seqs,) int32, tokens in the cache, the queries' own included (write comes first). `cu_q`: (n_seqs + 1,) int32;
    rows cu_q[s] to cu_q[s + 1] are the last tokens of sequence s. `plan`: made for this kind of cache and n_seqs.

    `out`: like `q`, made here when None; it must not overlap q or the cache. `scale` multiplies the scores and
    defaults to head_size ** -0.5. `lse`: (tokens, q_heads) float32, the natural logarithm of the sum of exponentials.
    Rows of an empty sequence and rows outside of cu_q are zeros, with lse -inf.

    The other arguments are features: one that the selection's request does not name raises FeatureNotSelected.
    Lengths, offsets and page numbers must lie inside; that is checked on the cpu only, as with `write`.

    Raises FeatureNotSelected, WrongCache, WrongShape, WrongDtype, WrongDevice or CallError before any launch.
    """
    checks.attend_call(q, cache, page_table, seq_lens, cu_q, plan, out, scale)
    features.check(cache.kind, causal, window, softcap, sinks, alibi, prefix_ranges)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    scale = cache.kind.head_size**-0.5 if scale is None else float(scale)
    if torch.compiler.is_compiling():
        split = plan.split
        torch.ops.kvreg.attend(
            q, cache.buffer, page_table, seq_lens, cu_q, out, lse, split.partial_out, split.partial_lse,
            cache.spec, split.splits, split.chunk, plan.max_context, plan.batch_invariant, scale,
        )  # fmt: skip
    else:
        split = ops.split_for(q, seq_lens, plan.split)
        call = AttendCall(q, cache.view, page_table, seq_lens, cu_q, out, lse, scale, split)
        ops.launch_attend(cache.geometry, call, plan.max_context, plan.batch_invariant)
    return (out, lse) if return_lse else out
