"""A plain torch write and attention with one fault at a time: what the gate is tried on.

Without a fault it is right. It shares nothing with the oracle: fp32, a butterfly, signs from torch's generator,
torch's fp8 types, a context cut into splits of tiles and merged as kernels do it. `kvreg.gate.faults` lists the
faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvreg.core.modes import Mode, rotation_block
from kvreg.gate.specimen_rows import backward, forward, quantize, read
from kvreg.oracle import Cache
from kvreg.testing import FeatureValues
from kvreg.testing.features import CAUSAL

TILE = 16
SPLITS = 3


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
            packed, scale = quantize(cache, side, source[kept].float(), self.fault, k_scale)
            data.view(torch.uint8)[at] = packed
            if scale is not None and plane is not None:
                plane[at] = scale
            if side == "k":
                k_scale = scale

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
        features: FeatureValues = CAUSAL,
    ) -> None:
        """Fill `out` like `q` and `lse` (tokens, q_heads), with the queries at the end of their contexts."""
        rotated = cache.mode is Mode.INT4_PER_TOKEN_HEAD
        tokens, _, d = q.shape
        block = rotation_block(d)
        counts, contexts = cu_q.diff().to(torch.int64), seq_lens.to(torch.int64)
        x = forward(q.float()) if rotated and self.fault != "q_unrotated" else q.float()
        softmax_scale = scale / block if rotated and self.fault != "scale_undivided" else scale

        starts = cu_q.to(torch.int64)
        o, log = self._paged(x, cache, page_table, contexts, counts, starts, softmax_scale, features)
        if rotated:
            o = (o if self.fault == "o_rotated" else backward(o)) / (d if self.fault == "undo_head" else block)
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

    def _visible(self, key: torch.Tensor, at: torch.Tensor, features: FeatureValues) -> torch.Tensor:
        """Return (n, m, t) bool: which of the keys (t,) the rows at positions `at` (n, m) may see."""
        at = at[..., None]
        causal = torch.as_tensor(features.causal, device=key.device).expand(len(at))
        if self.fault in ("causal_forced", "causal_ignored"):
            causal = torch.full_like(causal, self.fault == "causal_forced")
        elif self.fault == "causal_of_next":
            causal = causal.roll(-1)
        full = ~causal[:, None, None]
        late = 1 if self.fault in ("causal_late", "mask_late") else 0
        seen = (key <= at + late) | full
        near = torch.ones_like(seen)
        if features.window is not None and self.fault != "window_dropped":
            width = features.window + {"window_late": 1, "window_early": -1}.get(self.fault or "", 0)
            near = at - key < width
            if self.fault != "window_ahead":
                near &= (key - at < width) | ~full
        seen &= near
        ranges = features.prefix_ranges
        for pair in () if ranges is None or self.fault == "range_dropped" else ranges.to(torch.int64).unbind(1):
            begin, end = (x[:, None, None] for x in pair.unbind(-1))
            if self.fault == "range_begin_late":
                begin = begin + 1
            if self.fault == "range_end_late":
                end = torch.where(begin < end, end + 1, end)
            holds = (at >= begin) & (at < end)
            if self.fault != "range_of_rows":
                holds = holds & (key >= begin) & (key < end)
            seen |= holds & near if self.fault == "range_in_window" else holds
        return seen

    def _scores(
        self, dots: torch.Tensor, scale: float, distance: torch.Tensor, key: torch.Tensor, features: FeatureValues
    ) -> torch.Tensor:
        """Return scores of products (n, heads, group, m, t), `distance` = t - p being (n, m, t)."""
        _, heads, group, *_ = dots.shape
        cap = features.softcap if self.fault != "softcap_dropped" else None
        slope: torch.Tensor | float = 0.0
        if features.alibi is not None and self.fault != "alibi_dropped":
            slopes = features.alibi.view(heads, group)[..., None, None]
            slope = slopes[:, :1] if self.fault == "alibi_of_group" else slopes
            slope = -slope if self.fault == "alibi_sign" else slope
            slope = slope * (key if self.fault == "alibi_origin" else distance[:, None, None])
        if cap is None:
            return dots * scale + slope
        if self.fault == "softcap_unscaled":
            return cap * (dots / cap).tanh() * scale + slope
        if self.fault == "alibi_capped":
            return cap * ((dots * scale + slope) / cap).tanh()
        return cap * (dots * scale / cap).tanh() + slope

    def _sink(self, features: FeatureValues, heads: int) -> torch.Tensor | None:
        """Return the sinks as (heads, group, 1), beside sums of (n, heads, group, m)."""
        if features.sinks is None or self.fault == "sink_dropped":
            return None
        sink = features.sinks.view(heads, -1)
        if self.fault == "sink_of_group":
            sink = sink[:, :1].expand_as(sink)
        return (sink * math.log(2) if self.fault == "sink_base2" else sink)[..., None]

    def _paged(
        self,
        x: torch.Tensor,
        cache: Cache,
        page_table: torch.Tensor,
        contexts: torch.Tensor,
        counts: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
        features: FeatureValues,
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
        k, v = (torch.where(inside[..., None, None], read(cache, s, page, slot, self.fault), 0.0) for s in ("k", "v"))

        step = torch.arange(m, device=device)
        row = torch.where(step < counts[:, None], starts[:-1, None] + step, tokens)
        padded = torch.cat((x, torch.zeros_like(x[:1])))[row].view(n, m, heads, group, d)
        k_of, v_of = (side.permute(0, 2, 1, 3)[:, :, None].expand(-1, -1, group, -1, -1) for side in (k, v))
        if self.fault == "read_head":
            k_of, v_of = (torch.cat((y[:, :, :-1], y.roll(-1, 1)[:, :, -1:]), 2) for y in (k_of, v_of))
        dots = padded.permute(0, 2, 3, 1, 4) @ k_of.transpose(-1, -2)  # (n, heads, group, m, t + 1)
        at = (contexts - counts)[:, None] + step
        if self.fault == "draft_at_end":
            at = (contexts - 1)[:, None].expand_as(at)
        scores = self._scores(dots, scale, (key - at[..., None]).float(), key.float(), features)
        visible = inside[:, None] & self._visible(key, at, features)
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
        empty = log == -math.inf
        sink = self._sink(features, heads)
        if sink is not None:
            high = torch.maximum(top, sink)
            keep = (top - high).exp()
            total = total * keep + (sink - high).exp() * (SPLITS if self.fault == "sink_repeated" else 1)
            acc = acc * keep[..., None]
            log = log if self.fault == "sink_not_in_lse" else high + total.log()
        if self.fault == "sink_of_nothing":
            log = torch.where(empty, -math.inf, log)
        acc = acc / torch.where(total == 0, 1.0, total)[..., None]
        o = torch.zeros((tokens + 1, q_heads, d), device=device)
        lse = torch.full((tokens + 1, q_heads), -math.inf, device=device)
        if sink is not None and self.fault not in ("sink_not_in_lse", "sink_of_nothing"):
            lse[:] = sink.flatten()
        o[row.flatten()] = acc.permute(0, 3, 1, 2, 4).reshape(n * m, q_heads, d)
        lse[row.flatten()] = log.permute(0, 3, 1, 2).reshape(n * m, q_heads)
        return o[:tokens], lse[:tokens]
