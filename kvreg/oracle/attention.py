"""Paged attention in fp64, batched and bounded in memory, on any torch device.

Sequences of like length are padded to one another and computed together; a batch is cut into pieces of at most
`budget` bytes of scores and rows, so that 200 sequences of 8192 tokens fit. Nothing waits for the device except the
reading of the lengths.

With p the position of a query row and t that of a key, t is seen where t < seq_len and (causal: t <= p) and (window:
p - t < window, and t - p < window where not causal), or where some prefix range holds both. A score becomes
dot * scale, then softcap * tanh(score / softcap), then -inf where it is not seen, then + slope * (t - p).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvreg.oracle.caches import Cache, model_rows

CPU_BUDGET = 192 << 20
CARD_BUDGET = 4 << 30
"""Bytes of intermediate fp64 values: small against a card's memory, large enough to keep it busy."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What an attention call should have given."""

    out: torch.Tensor
    """(tokens, q_heads, head_size) float64; zeros where a row sees no key."""
    lse: torch.Tensor
    """(tokens, q_heads) float64, natural log of the sum of exponentials over the seen keys and the sink.

    Where a row sees no key it is the sink, or -inf where there is none."""
    spread: torch.Tensor
    """(tokens, q_heads) float64, sqrt(sum p^2 |v|^2): what |out| would be if the values did not correlate."""


class RowSource(Protocol):
    """Where the keys and values of sequences come from."""

    @property
    def kv_heads(self) -> int:
        """KV heads of a row."""

    def read(self, seqs: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V, each (n, t, kv_heads, head_size) float64.

        `seqs`: (n,) int64; `positions`: (n, t) int64, all inside their sequences.
        """


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows of a cache, found by a page table of (n_seqs, max_pages) integers."""

    cache: Cache
    page_table: torch.Tensor

    @property
    def kv_heads(self) -> int:
        """KV heads of a row."""
        return self.cache.kv_heads

    def read(self, seqs: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See RowSource."""
        pages = self.page_table[seqs].to(torch.int64).gather(1, positions // self.cache.page)
        slots = positions % self.cache.page
        return model_rows(self.cache, "k", pages, slots), model_rows(self.cache, "v", pages, slots)


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows that were never cached: `k`, `v` (rows, kv_heads, head_size), sequence s starting at row starts[s]."""

    k: torch.Tensor
    v: torch.Tensor
    starts: torch.Tensor

    @property
    def kv_heads(self) -> int:
        """KV heads of a row."""
        return int(self.k.shape[1])

    def read(self, seqs: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See RowSource."""
        index = self.starts[seqs].to(torch.int64)[:, None] + positions
        return self.k[index].to(torch.float64), self.v[index].to(torch.float64)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Query rows `first` to `first + count` of one sequence."""

    seq: int
    context: int
    first: int
    count: int
    position: int
    """Position of the first query row in its sequence; may be negative."""


def _ints(values: torch.Tensor | Sequence[int]) -> list[int]:
    return [int(x) for x in (values.tolist() if isinstance(values, torch.Tensor) else values)]


def _pieces(contexts: list[int], starts: list[int], row_bytes: int, budget: int) -> Iterator[_Piece]:
    """Cut every sequence that has keys and queries; `row_bytes` is what one (query row, key) pair costs."""
    for seq, context in enumerate(contexts):
        queries = starts[seq + 1] - starts[seq]
        if context <= 0:
            continue
        step = max(1, budget // (context * row_bytes))
        for first in range(0, queries, step):
            yield _Piece(seq, context, starts[seq] + first, min(step, queries - first), context - queries + first)


def _chunks(pieces: list[_Piece], row_bytes: int, key_bytes: int, budget: int) -> Iterator[list[_Piece]]:
    """Group pieces of like size until the padded group would pass the budget."""
    chunk: list[_Piece] = []
    for piece in sorted(pieces, key=lambda p: (-p.context, -p.count, p.seq, p.first)):
        if chunk:
            longest, widest = chunk[0].context, max(chunk[0].count, piece.count, *(p.count for p in chunk))
            cost = (len(chunk) + 1) * longest * (widest * row_bytes + key_bytes)
            small = longest <= 64
            if cost > budget or not (small or 2 * piece.context >= longest) or 4 * piece.count < chunk[0].count:
                yield chunk
                chunk = []
        chunk.append(piece)
    if chunk:
        yield chunk


def _softmax(
    scores: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (p, lse) over the last axis; rows that see nothing have p = 0. `scores` is consumed.

    `sinks`: logits, of the shape of scores[..., :1] after broadcasting, that take weight and are no key.
    """
    scores.masked_fill_(~seen, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    p = scores.sub_(top).exp_()
    total = p.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - top).exp()
    lse = (top + total.log()).squeeze(-1)
    return p.div_(torch.where(total == 0, torch.ones_like(total), total)), lse


def _seen(
    keys: torch.Tensor,
    rows: torch.Tensor,
    length: torch.Tensor,
    causal: torch.Tensor,
    window: int | None,
    ranges: torch.Tensor | None,
) -> torch.Tensor:
    """Return (n, m, t) bool: which keys at positions `keys` (t,) the query rows at positions `rows` (n, m) see.

    `length` (n,) keys of each sequence, `causal` (n,) bool, `ranges` (n, r, 2) of [begin, end).
    """
    last = torch.where(causal[:, None], rows, torch.iinfo(torch.int64).max // 2)
    first = torch.full_like(rows, torch.iinfo(torch.int64).min // 2)
    if window is not None:
        last, first = torch.minimum(last, rows + window - 1), rows - window + 1
    seen = (keys <= last[:, :, None]) & (keys >= first[:, :, None])
    for pair in () if ranges is None else ranges.unbind(1):
        begin, end = pair.unbind(-1)
        holds_row = (rows >= begin[:, None]) & (rows < end[:, None])
        holds_key = (keys >= begin[:, None]) & (keys < end[:, None])
        seen |= holds_row[:, :, None] & holds_key[:, None, :]
    return seen & (keys < length[:, None, None])


def attention(
    q: torch.Tensor,
    rows: RowSource,
    seq_lens: torch.Tensor | Sequence[int],
    cu_q: torch.Tensor | Sequence[int],
    *,
    scale: float,
    causal: bool | Sequence[bool] | torch.Tensor = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    prefix_ranges: torch.Tensor | None = None,
    budget: int | None = None,
) -> Reference:
    """Return fp64 attention with the queries of each sequence at the end of its context.

    `q`: (tokens, q_heads, head_size), any float dtype; `seq_lens`: keys of each sequence, its queries included;
    `cu_q`: (n_seqs + 1,) query offsets. Query row i of m stands at position seq_len - m + i; a row that sees no key,
    and rows beyond cu_q[-1], give zeros, and the sink (else -inf) as lse. A row that sees a non-finite value row is
    nan. `causal`: one bool, or one a sequence; `window`: keys that a query sees behind it, its own included; `sinks`,
    `alibi`: (q_heads,) logits and slopes; `prefix_ranges`: (n_seqs, ranges, 2) integers, [begin, end) positions that
    see each other both ways, none where begin >= end. The module's docstring says how they combine.
    """
    device, (tokens, q_heads, head_size) = q.device, q.shape
    budget = budget or (CPU_BUDGET if device.type == "cpu" else CARD_BUDGET)
    contexts, starts = _ints(seq_lens), _ints(cu_q)
    masks = [int(causal)] * len(contexts) if isinstance(causal, bool) else _ints(causal)
    heads = rows.kv_heads
    group = q_heads // heads
    row_bytes = 4 * 8 * q_heads  # scores, their mask and two products
    key_bytes = 8 * 8 * heads * head_size  # K and V, each with its codes, product and transpose

    # One row more than asked: padded query rows of a chunk are written there.
    out = torch.zeros((tokens + 1, q_heads, head_size), dtype=torch.float64, device=device)
    lse = torch.full((tokens + 1, q_heads), float("-inf"), dtype=torch.float64, device=device)
    # (1, heads, 1, group, 1): beside scores of (n, heads, m, group, t)
    by_head = [x if x is None else x.to(device, torch.float64).view(1, heads, 1, group, 1) for x in (sinks, alibi)]
    sink, slope = by_head
    if sinks is not None:
        lse[:] = sinks.to(device, torch.float64)
    spread = torch.zeros((tokens + 1, q_heads), dtype=torch.float64, device=device)

    for chunk in _chunks(list(_pieces(contexts, starts, row_bytes, budget)), row_bytes, key_bytes, budget):
        n, t, m = len(chunk), chunk[0].context, max(p.count for p in chunk)
        facts = torch.tensor(
            [[p.seq, p.context, p.first, p.count, p.position, masks[p.seq]] for p in chunk], dtype=torch.int64
        ).to(device)
        seq, length, first, count, position, mask = facts.unbind(1)
        keys = torch.arange(t, device=device)
        steps = torch.arange(m, device=device)
        k, v = rows.read(seq, torch.minimum(keys[None, :], length[:, None] - 1))
        real = steps[None, :] < count[:, None]
        target = torch.where(real, first[:, None] + steps, tokens)
        queries = q[target.clamp(max=max(tokens - 1, 0))].to(torch.float64)

        k, v = k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        grouped = queries.reshape(n, m, heads, group, head_size).permute(0, 2, 1, 3, 4)
        scores = (grouped.reshape(n, heads, m * group, head_size) @ k).mul_(scale).view(n, heads, m, group, t)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        at = position[:, None] + steps
        if slope is not None:
            distance = keys - at[:, :, None]
            scores.addcmul_(slope, distance[:, None, :, None, :].to(torch.float64))
        ranges = None if prefix_ranges is None else prefix_ranges.to(device, torch.int64)[seq]
        seen = _seen(keys, at, length, mask > 0, window, ranges)
        p, chunk_lse = _softmax(scores, seen[:, None, :, None, :], sink)
        # A non-finite value row must not reach the rows that do not see it, and 0 * nan would.
        broken = ~v.sum(-1).isfinite()
        v = v.masked_fill(broken[..., None], 0.0)
        tainted = (seen[:, None].to(torch.float64) @ broken[..., None].to(torch.float64)) > 0

        flat = p.view(n, heads, m * group, t)
        o = (flat @ v).view(n, heads, m, group, head_size).permute(0, 2, 1, 3, 4)
        o = o.masked_fill(tainted.permute(0, 2, 1, 3)[..., None], float("nan"))
        weight = flat.square_() @ v.square().sum(-1, keepdim=True)
        place = target.reshape(-1)
        out[place] = o.reshape(n * m, q_heads, head_size)
        lse[place] = chunk_lse.permute(0, 2, 1, 3).reshape(n * m, q_heads)
        spread[place] = weight.view(n, heads, m, group).permute(0, 2, 1, 3).reshape(n * m, q_heads).sqrt_()
    return Reference(out[:tokens], lse[:tokens], spread[:tokens])


def over_cache(
    q: torch.Tensor,
    cache: Cache,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor | Sequence[int],
    cu_q: torch.Tensor | Sequence[int],
    *,
    scale: float,
    causal: bool | Sequence[bool] | torch.Tensor = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    prefix_ranges: torch.Tensor | None = None,
    budget: int | None = None,
) -> Reference:
    """Return attention over the dequantized rows of a cache: the reference that kernels are judged against."""
    return attention(
        q,
        PagedRows(cache, page_table),
        seq_lens,
        cu_q,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=sinks,
        alibi=alibi,
        prefix_ranges=prefix_ranges,
        budget=budget,
    )
