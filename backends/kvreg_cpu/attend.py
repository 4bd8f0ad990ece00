"""Attention over a paged cache in plain torch; see kvreg.runtime.launchers.AttendLauncher.

One KV head of one sequence at a time: its rows are gathered and dequantized into new float32 memory, then as many
query rows as `config["scores"]` allows are scored against them. No step looks at another sequence, so that the batch
around a sequence cannot change its output; rows beyond a sequence's end are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kvreg.core.modes import rotation_block
from kvreg.runtime.launchers import AttendCall, CacheView
from kvreg_cpu.int4 import dequantize
from kvreg_cpu.rotation import rotate, unrotate

Rows = Callable[[CacheView, torch.Tensor, int, int], tuple[torch.Tensor, torch.Tensor]]
"""(cache, pages, head, length) -> K and V, each (length, head_size) float32 in memory of their own."""


def _gather(plane: torch.Tensor, pages: torch.Tensor, head: int, length: int) -> torch.Tensor:
    """Return the first `length` tokens of one head, (length, ...), in new memory."""
    return plane[pages, :, head].flatten(0, 1)[:length]


def _plain_rows(cache: CacheView, pages: torch.Tensor, head: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (_gather(plane, pages, head, length).float() for plane in (cache.k, cache.v))
    return k, v


def _int4_rows(cache: CacheView, pages: torch.Tensor, head: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V as they are stored: rotated."""
    k, v = (
        dequantize(_gather(plane, pages, head, length), _gather(scales, pages, head, length))
        for plane, scales in ((cache.k, cache.k_scale), (cache.v, cache.v_scale))
    )
    return k, v


def _weighted(weights: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return weights (rows, group, tokens) times v (tokens, head_size), row i over its first seen[i] tokens only.

    A weight of zero would not keep out a later token's infinity or NaN, so such a V is summed row by row.
    """
    if bool(torch.isfinite(v).all()):
        return weights @ v
    return torch.stack([row[:, :count] @ v[:count] for row, count in zip(weights, seen.tolist(), strict=True)])


def _attend_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (out, lse) of q (rows, group, head_size), row i over its first seen[i] >= 1 tokens."""
    most = int(seen[-1])
    k, v = k[:most], v[:most]
    scores = (q.flatten(0, 1) @ k.T).view(*q.shape[:2], most) * scale
    hidden = torch.arange(most) >= seen[:, None]
    scores.masked_fill_(hidden[:, None, :], -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    return _weighted(weights, v, seen) / total, (top + total.log()).squeeze(-1)


class Attend:
    """Decode and prefill alike."""

    def __init__(self, rows: Rows, rotated: bool) -> None:
        self.rows = rows
        self.rotated = rotated

    def splits(
        self,
        rows: int,
        kv_heads: int,
        group: int,
        max_context: int,
        compute_units: int | None,
        config: Mapping[str, int],
    ) -> int:
        """Return 1: contexts stay whole."""
        return 1

    def chunk(self, config: Mapping[str, int]) -> int:
        """Return 0: contexts stay whole, and no row's result depends on the batch."""
        return 0

    @torch.no_grad()
    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Attend, sequence by sequence and head by head."""
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(-torch.inf)
        offsets = call.cu_q.tolist()
        for sequence, length in enumerate(call.seq_lens.tolist()):
            # The last of the sequence's rows sees all `length` tokens; rows before its first token stay zero.
            end = offsets[sequence + 1]
            begin = max(offsets[sequence], end - length)
            if begin < end:
                self._sequence(call, sequence, begin, end, length, config["scores"])

    def _sequence(self, call: AttendCall, sequence: int, begin: int, end: int, length: int, most_scores: int) -> None:
        cache = call.cache
        group = call.q.shape[1] // cache.kv_heads
        pages = call.page_table[sequence, : -(-length // cache.page)].long()
        step = max(1, most_scores // (group * length))
        scale = call.scale / rotation_block(cache.head_size) if self.rotated else call.scale
        for head in range(cache.kv_heads):
            k, v = self.rows(cache, pages, head, length)
            heads = slice(head * group, (head + 1) * group)
            for first in range(begin, end, step):
                last = min(first + step, end)
                # New, aligned memory: what a matrix product rounds to may depend on where its operands lie.
                q = torch.empty((last - first, group, cache.head_size)).copy_(call.q[first:last, heads])
                q = rotate(q) if self.rotated else q
                seen = torch.arange(first, last) + (length - end + 1)
                out, lse = _attend_rows(q, k, v, seen, scale)
                call.out[first:last, heads] = (unrotate(out) if self.rotated else out).to(call.out.dtype)
                if call.lse is not None:
                    call.lse[first:last, heads] = lse


attend_none = Attend(_plain_rows, rotated=False)
attend_int4 = Attend(_int4_rows, rotated=True)
