"""Attention over a paged cache in plain torch; see kvreg.runtime.launchers.AttendLauncher.

One KV head of one sequence at a time: the rows that its queries can see are gathered and dequantized into new float32
memory, then as many query rows as `config["scores"]` allows are scored against them. No step looks at another
sequence, so that the batch around a sequence cannot change its output; rows that no query sees are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kvreg.core.modes import rotation_block
from kvreg.runtime.launchers import AttendCall, CacheView
from kvreg_cpu import eight_bit, int4
from kvreg_cpu.rotation import rotate, unrotate
from kvreg_cpu.sight import Sight

Rows = Callable[[CacheView, int, torch.Tensor, torch.Tensor], torch.Tensor]
"""(cache, 0 for K or 1 for V, stored rows, their scales or none) -> (n, head_size) float32 in memory of their own."""


def _plain_rows(cache: CacheView, side: int, stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    return stored.float()


def _int4_rows(cache: CacheView, side: int, stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return rows as they are stored: rotated."""
    return int4.dequantize(stored, scales)


def _scaled_rows(cache: CacheView, side: int, stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return eight_bit.dequantize(stored, scales)


def _tensor_scaled_rows(cache: CacheView, side: int, stored: torch.Tensor, scales: None) -> torch.Tensor:
    assert cache.tensor_scales is not None  # the runtime makes no cache of this mode without
    return eight_bit.dequantize(stored, cache.tensor_scales[side])


def _gather(plane: torch.Tensor, pages: torch.Tensor, head: int, skip: int, count: int) -> torch.Tensor:
    """Return `count` tokens of one head after the first `skip`, (count, ...), in new memory."""
    if plane.dtype.is_floating_point and plane.element_size() == 1:
        return plane.view(torch.uint8)[pages, :, head].flatten(0, 1)[skip : skip + count].view(plane.dtype)
    return plane[pages, :, head].flatten(0, 1)[skip : skip + count]


def _weighted(weights: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return weights (rows, group, tokens) times v (tokens, head_size), row i over the tokens that seen[i] has only.

    A weight of zero would not keep out an unseen token's infinity or NaN, so such a V is summed row by row.
    """
    if bool(torch.isfinite(v).all()):
        return weights @ v
    return torch.stack([row[:, keys] @ v[keys] for row, keys in zip(weights, seen, strict=True)])


def _softmaxed(
    scores: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (out, lse) of scores (rows, group, tokens); rows that see nothing give zeros and the sink, or -inf."""
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks[:, None])
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None] - top)
    out = _weighted(weights, v, seen) / torch.where(total == 0, 1.0, total)
    return out, (top + total.log()).squeeze(-1)


class Attend:
    """Decode and prefill alike."""

    def __init__(self, rows: Rows, rotated: bool = False) -> None:
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
            call.lse.copy_(torch.tensor(-torch.inf) if call.features.sinks is None else call.features.sinks)
        offsets = call.cu_q.tolist()
        for sequence, length in enumerate(call.seq_lens.tolist()):
            begin, end = offsets[sequence], offsets[sequence + 1]
            if begin < end:
                self._sequence(call, Sight.of(call, sequence, length), sequence, begin, end, config["scores"])

    def _sequence(self, call: AttendCall, sight: Sight, sequence: int, begin: int, end: int, most_scores: int) -> None:
        """Attend rows `begin` to `end`, the last tokens of the sequence."""
        cache, features = call.cache, call.features
        group = call.q.shape[1] // cache.kv_heads
        shift = sight.length - end
        low, high = sight.reach(begin + shift, end - 1 + shift)
        if low == high:
            return
        step = max(1, most_scores // (group * (high - low)))
        scale = call.scale / rotation_block(cache.head_size) if self.rotated else call.scale
        for head in range(cache.kv_heads):
            k, v = self._read(cache, call.page_table[sequence], head, low, high)
            heads = slice(head * group, (head + 1) * group)
            sinks = None if features.sinks is None else features.sinks[heads]
            for first in range(begin, end, step):
                last = min(first + step, end)
                positions = torch.arange(first, last) + shift
                near, far = sight.reach(first + shift, last - 1 + shift)
                if near == far:
                    continue
                # New, aligned memory: what a matrix product rounds to may depend on where its operands lie.
                q = torch.empty((last - first, group, cache.head_size)).copy_(call.q[first:last, heads])
                q = rotate(q) if self.rotated else q
                scores = (q.flatten(0, 1) @ k[near - low : far - low].T).view(*q.shape[:2], far - near) * scale
                if features.softcap is not None:
                    scores = features.softcap * torch.tanh(scores / features.softcap)
                if features.alibi is not None:
                    behind = torch.arange(near, far) - positions[:, None]
                    scores = scores + features.alibi[heads][:, None] * behind[:, None, :]
                seen = sight.seen(positions, near, far)
                scores.masked_fill_(~seen[:, None, :], -torch.inf)
                out, lse = _softmaxed(scores, v[near - low : far - low], seen, sinks)
                call.out[first:last, heads] = (unrotate(out) if self.rotated else out).to(call.out.dtype)
                if call.lse is not None:
                    call.lse[first:last, heads] = lse

    def _read(
        self, cache: CacheView, table: torch.Tensor, head: int, low: int, high: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V of keys `low` up to `high` of one head, each (high - low, head_size) float32."""
        first = low // cache.page
        pages = table[first : -(-high // cache.page)].long()
        where = (pages, head, low - first * cache.page, high - low)
        k, v = (
            self.rows(cache, side, _gather(plane, *where), None if scales is None else _gather(scales, *where))
            for side, plane, scales in ((0, cache.k, cache.k_scale), (1, cache.v, cache.v_scale))
        )
        return k, v


attend_none = Attend(_plain_rows)
attend_int4 = Attend(_int4_rows, rotated=True)
attend_int8 = Attend(_scaled_rows)
attend_fp8h = Attend(_scaled_rows)
attend_fp8t = Attend(_tensor_scaled_rows)
