"""What decides the launches of a call: everything that its checks and launchers see of it but addresses.

Of a tensor that is shape, strides, dtype and whether its address is a multiple of 16 bytes, of a plan its cut, of all
else the value; all tensors lie where the cache does. Two calls of one cache with equal facts pass the same checks and
make the same launches, but for `out`, which may lie over `q` or the cache: that depends on addresses, and is looked at
in every call that names it.

None stands for a call that goes the full way, whatever an earlier one was: values are checked (on the cpu), a tensor
is made from values (lists of bools, prefix ranges), a tensor has no memory of its own (subclasses, transforms), or an
argument has not its usual type, so that a check has something to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvreg.runtime import replay
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import Plan
from kvreg.runtime.replay import WIDEST, Asked, Known

_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_NUMBERS = frozenset((float, int, type(None)))
"""Exact types, since True equals 1 and is no scale."""
_COUNTS = frozenset((int, type(None)))


def of_write(cache: Any, k: Any, v: Any, slots: Any) -> Asked | None:
    """Return the facts of `kvreg.write(cache, k, v, slots)`."""
    known = _known(cache)
    if known is None:
        return None
    view = cache.view
    own = (view.k, view.v, view.k_scale, view.v_scale)
    return _asked(known, cache.device, ("write",), (k, v, slots, view.tensor_scales), own)


def of_attend(
    q: Any,
    cache: Any,
    page_table: Any,
    seq_lens: Any,
    cu_q: Any,
    plan: Any,
    out: Any,
    scale: Any,
    causal: Any,
    window: Any,
    softcap: Any,
    sinks: Any,
    alibi: Any,
    prefix_ranges: Any,
    return_lse: Any,
) -> Asked | None:
    """Return the facts of such a call of `kvreg.attend`."""
    known = _known(cache)
    if (
        known is None
        or prefix_ranges is not None
        or type(plan) is not Plan
        or plan.kind is not cache.kind
        or type(page_table) not in _TENSORS
        or type(scale) not in _NUMBERS
        or type(softcap) not in _NUMBERS
        or type(window) not in _COUNTS
        or type(return_lse) is not bool
    ):
        return None
    each = None
    if type(causal) is not bool:
        causal, each = None, causal
        if each is None:
            return None
    pages = page_table.shape
    # In place of max_context itself, which grows with every token of a step and decides nothing else.
    if len(pages) != 2 or pages[1] * cache.kind.page < plan.max_context:
        return None
    split, view = plan.split, cache.view
    sums, norms = split.partial_out, split.partial_lse
    return _asked(
        known,
        cache.device,
        (
            "attend", plan.n_seqs, plan.batch_invariant, split.splits, split.chunk, split.shares,
            None if sums is None else sums.dtype, None if norms is None else norms.dtype,
            scale, causal, window, softcap, return_lse,
        ),
        (q, page_table, seq_lens, cu_q, each, sinks, alibi, out, view.tensor_scales),
        (view.k, view.v, view.k_scale, view.v_scale, sums, norms),
    )  # fmt: skip


def _known(cache: Any) -> Known | None:
    """Return where the calls of a cache are kept, None where this one is to go the full way."""
    if type(cache) is not KVCache:
        return None
    known = cache.known
    if known is None or known.hopeless or replay.is_paused() or torch._C._len_torch_dispatch_stack():
        return None
    return known


def _asked(
    known: Known,
    place: torch.device,
    host: tuple[Any, ...],
    given: Sequence[Any],
    own: Sequence[torch.Tensor | None],
) -> Asked | None:
    """Return `host` with the facts of tensors; `own`: those whose shapes follow from the cache and `host`."""
    facts: list[Any] = [*host]
    addresses = []
    together = 0
    try:
        for tensor in given:
            if tensor is None:
                facts.append(None)
                addresses.append(0)
                continue
            if type(tensor) not in _TENSORS or tensor.device != place:
                return None
            address = tensor.data_ptr()
            # Strides follow from the shape of a contiguous tensor, but for axes of one element, which take no step.
            facts += (tensor.size(), tensor.is_contiguous() or tensor.stride(), tensor.dtype)
            addresses.append(address)
            together |= address
    except RuntimeError:  # no strides or no memory, as in sparse or transformed tensors
        return None
    for tensor in own:
        address = 0 if tensor is None else tensor.data_ptr()
        addresses.append(address)
        together |= address
    if together % WIDEST:
        facts.append(tuple(address % WIDEST == 0 for address in addresses))
    return Asked(known, tuple(facts), addresses, (*given, *own))
