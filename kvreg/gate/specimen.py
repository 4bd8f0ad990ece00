"""A plain torch write and attention with one fault at a time: what the gate is tried on.

Without a fault it is right. It shares nothing with the oracle: fp32, a butterfly, signs from torch's generator, a
context cut into splits of tiles and merged as kernels do it. `WRITER` and `READER` list the faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvreg.core.modes import ROTATION_SEED, Mode, rotation_block
from kvreg.oracle import Cache

TILE = 16
SPLITS = 3

WRITER = {
    "k_unrotated": "K is stored unrotated",
    "v_unrotated": "V is stored unrotated",
    "kv_unrotated": "K and V are stored unrotated",
    "write_nibbles": "odd channels go into the low nibble",
    "write_zero": "the stored zero point is one too high",
    "write_shifted_codes": "codes and zero point are both one lower, where there is room",
    "write_stale_scale": "a row keeps the scale of the row before it",
    "write_k_scale": "V is quantized and stored with K's scale",
    "write_range": "the range leaves 0 out",
    "write_lanes": "a lane beyond the head, holding 8, enters the range",
    "write_neighbour": "a row is stored in the slot behind its own",
    "write_padding": "a slot of -1 is written, to the cache's last slot",
}
"""Faults of a write, each with what it does."""

READER = {
    "q_unrotated": "the query is not rotated",
    "o_rotated": "the output is not rotated back",
    "read_nibbles": "the low nibble is read as the odd channel",
    "read_zero": "the zero point is read one too high",
    "read_stale_scale": "a row is read with the scale of the row before it",
    "read_k_scale": "V is read with K's scale",
    "read_head": "the last query head of a group reads the next group's KV head",
    "split_dropped": "the last split is left out of the merge",
    "tile_skipped": "the last tile is skipped",
    "mask_late": "one key beyond the sequence is read",
    "causal_late": "a query row sees one key too many",
    "scale_undivided": "the softmax scale is not divided by the rotation block",
    "undo_head": "the output is divided by the head size in place of the rotation block",
    "output_scaled": "the output is multiplied by .9",
    "output_zeros": "the output is zeros",
    "output_mean": "each row is the mean of all rows",
    "output_shuffled": "rows are exchanged",
    "row_unwritten": "the last row is not written",
    "empty_untouched": "rows that see no key are not written",
    "lse_base2": "the lse is in base 2",
}
"""Faults of a read, each with what it does."""

_ANY_MODE = frozenset(
    {
        "write_neighbour",
        "write_padding",
        "read_head",
        "split_dropped",
        "tile_skipped",
        "mask_late",
        "causal_late",
        "output_scaled",
        "output_zeros",
        "output_mean",
        "output_shuffled",
        "row_unwritten",
        "empty_untouched",
        "lse_base2",
    }
)
"""Faults that need neither a rotation nor codes."""


def modes_of(fault: str) -> tuple[Mode, ...]:
    """Return the modes in which a fault can exist."""
    return (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD) if fault in _ANY_MODE else (Mode.INT4_PER_TOKEN_HEAD,)


def _signs(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    return 2 * torch.bernoulli(torch.full((n,), 0.5), generator=generator) - 1


def _hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    shape, width = x.shape, 1
    while width < block:
        pairs = x.reshape(-1, 2, width)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1)
        width *= 2
    return x.reshape(shape)


def _forward(x: torch.Tensor) -> torch.Tensor:
    block = rotation_block(x.shape[-1])
    return _hadamard(x * _signs(block).to(x.device).repeat(x.shape[-1] // block), block)


def _backward(y: torch.Tensor) -> torch.Tensor:
    """Undo `_forward` except for the division by the block."""
    block = rotation_block(y.shape[-1])
    return _hadamard(y, block) * _signs(block).to(y.device).repeat(y.shape[-1] // block)


@dataclass(frozen=True, slots=True)
class Specimen:
    """A write and an attention with at most one fault."""

    fault: str | None = None

    def write(self, cache: Cache, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store `k`, `v` (rows, kv_heads, head_size) at `slots`; negative slots and rows without one are left out."""
        rows = torch.arange(len(slots), device=slots.device)
        total = cache.k.shape[0] * cache.page
        if self.fault == "write_padding":
            slots = torch.where(slots < 0, total - 1, slots)
        kept = rows[slots >= 0]
        index = slots[kept].to(torch.int64)
        if self.fault == "write_neighbour":
            index = (index + 1) % total
        at = (index // cache.page, index % cache.page)
        if cache.mode is Mode.NONE:
            cache.k[at], cache.v[at] = k[kept], v[kept]
            return
        k_scale: torch.Tensor | None = None
        for side, source, data, plane in (("k", k, cache.k, cache.k_scale), ("v", v, cache.v, cache.v_scale)):
            packed, scale = self._quantize(source[kept].float(), side, k_scale)
            if side == "k":
                k_scale = scale
            assert plane is not None
            data[at], plane[at] = packed, scale

    def _quantize(self, x: torch.Tensor, side: str, k_scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (bytes, stored scale) of rows; `k_scale`: K's stored scale while V is written."""
        if self.fault not in (f"{side}_unrotated", "kv_unrotated"):
            x = _forward(x)
        low, high = x.amin(-1), x.amax(-1)
        if self.fault != "write_range":
            low, high = low.clamp(max=0), high.clamp(min=0)
        if self.fault == "write_lanes":
            high = high.clamp(min=8 * x.shape[-1] ** 0.5)
        scale = ((high - low) / 15).clamp(min=1e-6)
        if self.fault == "write_k_scale" and k_scale is not None:
            scale = (k_scale.view(torch.int32) & ~15).view(torch.float32)
        zero = (-low / scale + 0.5).floor().clamp(0, 15)
        codes = (x / scale[..., None] + zero[..., None] + 0.5).floor().clamp(0, 15)
        if self.fault == "write_zero":
            zero = (zero + 1).clamp(max=15)
        elif self.fault == "write_shifted_codes":
            zero, codes = (zero - 1).clamp(min=0), (codes - 1).clamp(min=0)
        elif self.fault == "write_stale_scale":
            scale = scale.roll(1, 0)
        even, odd = codes[..., 0::2].to(torch.uint8), codes[..., 1::2].to(torch.uint8)
        if self.fault == "write_nibbles":
            even, odd = odd, even
        stored = (scale.view(torch.int32) & ~15) | zero.to(torch.int32)
        return even + 16 * odd, stored.view(torch.float32)

    def _rows(
        self, cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor, inside: torch.Tensor
    ) -> torch.Tensor:
        """Return stored rows (n, t, kv_heads, head_size) fp32, rotated as they are; zeros where not `inside`."""
        data = (cache.k if side == "k" else cache.v)[page, slot]
        keep = inside[..., None, None]
        if cache.mode is Mode.NONE:
            return torch.where(keep, data.float(), 0.0)
        plane = cache.k_scale if side == "k" or self.fault == "read_k_scale" else cache.v_scale
        assert plane is not None
        stored = plane[page, slot]
        if self.fault == "read_stale_scale":
            stored = torch.cat((stored[:, :1], stored[:, :-1]), 1)
        bits = stored.view(torch.int32)
        zero, scale = (bits % 16).float(), ((bits >> 4) << 4).view(torch.float32)
        if self.fault == "read_zero":
            zero = zero + 1
        halves = (data % 16, data // 16)
        if self.fault == "read_nibbles":
            halves = (halves[1], halves[0])
        codes = torch.stack(halves, -1).flatten(-2).float()
        return torch.where(keep, (codes - zero[..., None]) * scale[..., None], 0.0)

    def attend(
        self,
        q: torch.Tensor,
        cache: Cache,
        page_table: torch.Tensor,
        seq_lens: torch.Tensor,
        cu_q: torch.Tensor,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Fill `out` like `q` and `lse` (tokens, q_heads): causal attention, queries at the end of their contexts."""
        rotated = cache.mode is Mode.INT4_PER_TOKEN_HEAD
        tokens, _, d = q.shape
        block = rotation_block(d)
        counts, contexts = cu_q.diff().to(torch.int64), seq_lens.to(torch.int64)
        x = _forward(q.float()) if rotated and self.fault != "q_unrotated" else q.float()
        softmax_scale = scale / block if rotated and self.fault != "scale_undivided" else scale

        o, log = self._paged(x, cache, page_table, contexts, counts, cu_q.to(torch.int64), softmax_scale)
        if rotated:
            o = (o if self.fault == "o_rotated" else _backward(o)) / (d if self.fault == "undo_head" else block)
        if self.fault == "output_scaled":
            o = o * 0.9
        elif self.fault == "output_zeros":
            o = torch.zeros_like(o)
        elif self.fault == "output_mean":
            o = o.mean((0, 1), keepdim=True).expand_as(o)
        elif self.fault == "output_shuffled":
            o = o.reshape(-1, d).roll(1, 0).reshape(o.shape)
        keyless = log == -math.inf
        written = torch.ones(tokens, dtype=torch.bool, device=q.device)
        if self.fault == "row_unwritten":
            written[-1] = False
        if self.fault == "empty_untouched":
            written &= ~keyless.all(-1)
        out[written] = o.to(out.dtype)[written]
        if lse is not None:
            lse[written] = (log / math.log(2) if self.fault == "lse_base2" else log)[written]

    def _paged(
        self,
        x: torch.Tensor,
        cache: Cache,
        page_table: torch.Tensor,
        contexts: torch.Tensor,
        counts: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (output (tokens, q_heads, head_size), lse (tokens, q_heads)) of queries as they are, fp32."""
        (tokens, q_heads, d), heads, n = x.shape, cache.kv_heads, len(contexts)
        group, device = q_heads // heads, x.device
        t, m = max(int(contexts.max()), 1), max(int(counts.max()), 1)
        seen_to = contexts + 1 if self.fault == "mask_late" else contexts
        if self.fault == "tile_skipped":
            seen_to = (contexts - 1).clamp(min=0) // TILE * TILE
        key = torch.arange(t + 1, device=device)
        page = page_table.to(torch.int64)[:, (key // cache.page).clamp(max=page_table.shape[1] - 1)]
        slot = (key % cache.page).expand(n, -1)
        inside = key < seen_to[:, None]
        k, v = (self._rows(cache, side, page, slot, inside) for side in ("k", "v"))

        step = torch.arange(m, device=device)
        row = torch.where(step < counts[:, None], starts[:-1, None] + step, tokens)
        padded = torch.cat((x, torch.zeros_like(x[:1])))[row].view(n, m, heads, group, d)
        k_of, v_of = (side.permute(0, 2, 1, 3)[:, :, None].expand(-1, -1, group, -1, -1) for side in (k, v))
        if self.fault == "read_head":
            k_of, v_of = (torch.cat((y[:, :, :-1], y.roll(-1, 1)[:, :, -1:]), 2) for y in (k_of, v_of))
        scores = padded.permute(0, 2, 3, 1, 4) @ k_of.transpose(-1, -2) * scale  # (n, heads, group, m, t + 1)
        last = (contexts - counts)[:, None] + step + (1 if self.fault in ("causal_late", "mask_late") else 0)
        visible = inside[:, None] & (key <= last[..., None])
        scores = scores.masked_fill(~visible[:, None, None], -math.inf)

        top = torch.full(scores.shape[:-1], -math.inf, device=device)
        total, acc = torch.zeros_like(top), torch.zeros((*top.shape, d), device=device)
        length = -(-t // (SPLITS * TILE)) * TILE
        # Every context is cut into its own equal parts in kernels; here all are cut alike, so the split that a short
        # context does not reach is empty, as in a kernel.
        for split in range(SPLITS - 1 if self.fault == "split_dropped" else SPLITS):
            part = slice(split * length, t + 1 if split == SPLITS - 1 else (split + 1) * length)
            s = scores[..., part]
            high = torch.maximum(top, s.amax(-1)) if s.shape[-1] else top
            anchor = torch.where(high == -math.inf, 0.0, high)
            p, keep = (s - anchor[..., None]).exp(), (top - anchor).exp()
            total = total * keep + p.sum(-1)
            acc = acc * keep[..., None] + p @ v_of[..., part, :]
            top = high
        log = top + total.log()
        acc = acc / torch.where(total == 0, 1.0, total)[..., None]
        o = torch.zeros((tokens + 1, q_heads, d), device=device)
        lse = torch.full((tokens + 1, q_heads), -math.inf, device=device)
        o[row.flatten()] = acc.permute(0, 3, 1, 2, 4).reshape(n * m, q_heads, d)
        lse[row.flatten()] = log.permute(0, 3, 1, 2).reshape(n * m, q_heads)
        return o[:tokens], lse[:tokens]
