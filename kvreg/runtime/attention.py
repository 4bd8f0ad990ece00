"""write and attend: the two calls that a model makes in every layer.

Both check their arguments first, launch on the tensors' device and wait for nothing, so that they may be captured in
a graph. They compute no gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from kvreg.runtime import call_facts, checks, features, ops
from kvreg.runtime.cache import KVCache
from kvreg.runtime.launchers import AttendCall
from kvreg.runtime.overlaps import require_own_memory
from kvreg.runtime.plan import Plan


def write(cache: KVCache, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Quantize rows of K and V and store row i in slot `slots[i]` of the cache.

    `k`, `v`: (rows, kv_heads, head_size) in the model's dtype, any strides with stride 1 on the last axis. `slots`:
    (n,) int32 or int64 with n <= rows; slot = page number * page size + place in the page. A negative slot is skipped,
    and so are the rows beyond n (padding). No byte of any other slot changes, and the same call stores the same bytes.

    Slots must exist and be named once; that is checked on the cpu only, since elsewhere it would make the host wait.

    Raises WrongCache, WrongShape, WrongDtype, WrongDevice or CallError before anything is stored.
    """
    asked = None if torch.compiler.is_compiling() else call_facts.of_write(cache, k, v, slots)
    if asked is not None and asked.again():
        return
    checks.write_call(cache, k, v, slots)
    if torch.compiler.is_compiling():
        torch.ops.kvreg.write(cache.buffer, k, v, slots, cache.view.tensor_scales, cache.spec)
    else:
        ops.launch_write(cache.geometry, cache.view, k, v, slots, asked)


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
    (n_seqs, pages) int32, the pages of each sequence in order, wide enough for the plan's max_context; entries beyond
    a sequence's last page are not read. `seq_lens`: (n_seqs,) int32, tokens in the cache, the queries' own included
    (write comes first). `cu_q`: (n_seqs + 1,) int32, 0 first; rows cu_q[s] to cu_q[s + 1] are the last tokens of
    sequence s. Where they are more than its tokens, the first of them stand at negative positions: causal, they see
    no key. `plan`: made for this kind of cache and n_seqs. Tensors other than `q` and `out` have stride 1.

    Prefill of NVIDIA's sm_90 takes up to 256 MiB of device memory for the time of a call, for rows that it unpacks;
    one head of one sequence takes 4 bytes a token and padded channel, where that is more.

    `out`: like `q`, made here when None; it must not overlap the cache or any other argument. `scale` multiplies the
    scores and defaults to head_size ** -0.5. `lse`: (tokens, q_heads) float32, the natural logarithm of the sum of
    exponentials. Rows that see no key are zeros, with lse -inf or, given sinks, the sink; so are rows behind
    cu_q[n_seqs], which belong to no sequence. No gradient flows through `out` or `lse`.

    The other arguments are features: one that the selection's request does not name raises FeatureNotSelected.
    With p the position of a query row in its sequence and t that of a key:
    `causal`: whether only keys t <= p are seen; one bool, or one for each sequence: (n_seqs,) torch.bool on the
    device, or a list, which is laid down there anew in each call.
    `window`: keys that a query sees behind it, its own included (p - t < window, and t - p < window where not causal).
    `softcap`: scores, after `scale`, become softcap * tanh(score / softcap).
    `sinks`: (q_heads,) float32, a further logit of each head that takes weight and adds no value; lse includes it.
    `alibi`: (q_heads,) float32 slopes; slope * (t - p) is added to the capped score.
    `prefix_ranges`: (n_seqs, ranges, 2) int32, contiguous: positions from begin up to end see each other both ways,
    whatever `causal` and `window` say; a range with begin >= end is none.

    Lengths, offsets, page numbers and ranges must lie inside; that is checked on the cpu only, as with `write`.

    Raises FeatureNotSelected, WrongCache, WrongShape, WrongDtype, WrongDevice or CallError before any launch.
    """
    asked = None
    read = (page_table, seq_lens, cu_q, causal, sinks, alibi, prefix_ranges)
    if not torch.compiler.is_compiling():
        asked = call_facts.of_attend(
            q, cache, page_table, seq_lens, cu_q, plan, out, scale, causal, window, softcap, sinks, alibi,
            prefix_ranges, return_lse,
        )  # fmt: skip
    if asked is not None and asked.is_known:
        if out is not None:
            require_own_memory(out, q, cache.buffer, read)
        made, lse = _results(q, out, return_lse)
        if asked.again(made, lse):
            return (made, lse) if return_lse else made
    checks.attend_call(q, cache, page_table, seq_lens, cu_q, plan, out, scale, return_lse)
    n_seqs = seq_lens.shape[0]
    features.check(cache.kind, n_seqs, cache.device, causal, window, softcap, sinks, alibi, prefix_ranges)
    if out is not None and not torch.compiler.is_compiling() and not out.is_meta:
        require_own_memory(out, q, cache.buffer, read)
    out, lse = _results(q, out, return_lse)
    scale = cache.kind.head_size**-0.5 if scale is None else float(scale)
    window = None if window is None else operator.index(window)
    softcap = None if softcap is None else float(softcap)
    masked = features.mask(causal, cache.device)
    if torch.compiler.is_compiling():
        split = plan.split
        one, each = (masked, None) if isinstance(masked, bool) else (True, masked)
        torch.ops.kvreg.attend(
            q, cache.buffer, page_table, seq_lens, cu_q, out, lse, split.partial_out, split.partial_lse,
            cache.view.tensor_scales, each, sinks, alibi, prefix_ranges, cache.spec, split.splits, split.chunk,
            split.shares, plan.max_context, plan.batch_invariant, scale, one, window, softcap,
        )  # fmt: skip
    else:
        split = ops.split_for(cache.kind, q, n_seqs, plan.split)
        wanted = features.of(masked, window, softcap, sinks, alibi, prefix_ranges)
        call = AttendCall(q, cache.view, page_table, seq_lens, cu_q, out, lse, scale, split, wanted, plan.max_context)
        ops.launch_attend(cache.geometry, call, plan.batch_invariant, asked)
    return (out, lse) if return_lse else out


def _results(q: torch.Tensor, out: torch.Tensor | None, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tensors that a call fills, made where they are not given."""
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
