"""Calls to be timed: one variant on one workload over rotating buffers, with any launch parameters.

One cache holds the rows of every rotation; each call of a measurement reads other pages of it, so that none finds its
bytes in the L2. The buffers are made once and serve every config. Runs inside a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.layouts import LayoutId, default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant
from kvreg.runtime.launchers import AttendCall, CacheView, Features, SplitPlan, load
from kvreg.testing import CacheBytes, allocate
from kvreg.testing.caches import DTYPES
from kvreg.testing.features import draw, words_of
from kvreg_tuning import timing
from kvreg_tuning.subjects import moved_bytes

MOST_BYTES = 24 << 30
"""Cache memory of one measurement; more rotations than fit are left out."""

WINDOW = 4096
"""Tokens of a timed window, as Mistral's and Gemma 2's layers have: a request says that there is one, not how wide."""

UNSPLIT = SplitPlan(splits=1, chunk=0, partial_out=None, partial_lse=None)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed; `bucket` gives sequences and tokens, or the tokens of a write, and need be no power of two."""

    bucket: Bucket
    group: int
    kv_heads: int
    head_size: int
    page: int = 16
    dtype: str = "bf16"
    layout: LayoutId | None = None
    """None takes that of the variant's mode."""
    features: tuple[str, ...] = ("causal",)


class Bench:
    """One variant's buffers for one workload on a torch device."""

    def __init__(self, variant: Variant, workload: Workload, device: Device, place: str) -> None:
        self.variant, self.workload, self.device, self.place = variant, workload, device, place
        self.launcher = load(variant.launcher)
        bucket, page = workload.bucket, workload.page
        tokens = bucket.batch * max(bucket.context, 1)
        per_call = -(-tokens // page) if variant.op is Op.WRITE else bucket.batch * -(-bucket.context // page)
        page_bytes = variant.mode.bytes_per_token_head(workload.head_size) * workload.kv_heads * page
        self.rotations = self._rotations(per_call * page_bytes)
        self.cache = allocate(
            variant.mode,
            pages=self.rotations * per_call,
            page=page,
            kv_heads=workload.kv_heads,
            head_size=workload.head_size,
            dtype=workload.dtype,
            layout=workload.layout or default(variant.mode),
            device=place,
            fill=0,
            fp8=fp8_type(device),
        )
        if variant.op is not Op.WRITE:
            _fill(self.cache)
        self._inputs = self._writing() if variant.op is Op.WRITE else self._attending()

    def splits(self, config: Mapping[str, int]) -> int:
        """Return into how many parts a context is cut with these launch parameters."""
        if self.variant.op is Op.WRITE:
            return 1
        return splits_of(self.launcher, self.workload, self.device, config)

    def calls(self, config: Mapping[str, int]) -> list[timing.Call]:
        """Return one call a rotation."""
        view, launcher = CacheView(**self.cache.fields()), self.launcher
        if self.variant.op is Op.WRITE:
            k, v, slots = self._inputs
            return [partial(launcher, view, k, v, mine, config) for mine in slots]
        q, out, seq_lens, cu_q, tables, features = self._inputs
        shape = (int(q.shape[0]), int(q.shape[1]), int(q.shape[2]))
        splits = self.splits(config) if self.variant.op is Op.DECODE else 1
        split = split_plan(*shape, splits, 0, q.device)
        scale = self.workload.head_size**-0.5
        asked = [AttendCall(q, view, table, seq_lens, cu_q, out, None, scale, split, features) for table in tables]
        return [partial(launcher, mine, config) for mine in asked]

    def _rotations(self, cache_bytes: int) -> int:
        of, workload = self.variant, self.workload
        moved = moved_bytes(of.op, of.mode, workload.head_size, workload.kv_heads, workload.bucket) or cache_bytes
        on_card = torch.device(self.place).type == "cuda"
        count = timing.rotations(moved, _l2(self.place)) if on_card else 2
        return max(1, min(count, MOST_BYTES // max(1, cache_bytes)))

    def _writing(self) -> Any:
        count, page = self.workload.bucket.batch, self.workload.page
        shape = (count, self.workload.kv_heads, self.workload.head_size)
        k, v = (torch.randn(shape, device=self.place, dtype=DTYPES[self.workload.dtype]) for _ in range(2))
        pages = -(-count // page)

        def slots(rotation: int) -> torch.Tensor:
            # Page-contiguous slots, as an engine hands out pages; the pages lie in random order.
            order = torch.randperm(pages) + rotation * pages
            return (order[:, None] * page + torch.arange(page)).reshape(-1)[:count].to(self.place)

        return k, v, [slots(rotation) for rotation in range(self.rotations)]

    def _attending(self) -> Any:
        workload, bucket = self.workload, self.workload.bucket
        pages = -(-bucket.context // workload.page)
        queries = bucket.context if self.variant.op is Op.PREFILL else 1
        shape = (bucket.batch * queries, workload.group * workload.kv_heads, workload.head_size)
        q = torch.randn(shape, device=self.place, dtype=DTYPES[workload.dtype])
        seq_lens = torch.full((bucket.batch,), bucket.context, dtype=torch.int32, device=self.place)
        cu_q = torch.arange(bucket.batch + 1, dtype=torch.int32, device=self.place) * queries

        def table(rotation: int) -> torch.Tensor:
            order = torch.randperm(bucket.batch * pages) + rotation * bucket.batch * pages
            return order.to(torch.int32).view(bucket.batch, pages).to(self.place)

        features = draw(
            words_of(workload.features),
            contexts=[bucket.context] * bucket.batch,
            q_lens=[queries] * bucket.batch,
            q_heads=shape[1],
            window=WINDOW,
            seed=0,
            device=self.place,
        )
        tables = [table(rotation) for rotation in range(self.rotations)]
        return q, torch.empty_like(q), seq_lens, cu_q, tables, Features(**features.fields())


def splits_of(launcher: Any, workload: Workload, device: Device, config: Mapping[str, int]) -> int:
    """Return into how many parts an attention launcher cuts each context of a workload."""
    bucket = workload.bucket
    return int(
        launcher.splits(bucket.batch, workload.kv_heads, workload.group, bucket.context, device.compute_units, config)
    )


def split_plan(
    tokens: int, q_heads: int, head_size: int, splits: int, chunk: int, place: torch.device | str, shares: int = 0
) -> SplitPlan:
    """Return a plan of so many parts or shares; its workspace is full of nan, of which none must reach an output."""
    if splits <= 1:
        return replace(UNSPLIT, chunk=chunk)
    places, nan = (max(tokens * splits, tokens + shares), q_heads), float("nan")
    return SplitPlan(
        splits,
        chunk,
        torch.full((*places, head_size), nan, dtype=torch.float32, device=place),
        torch.full((*places, 2), nan, dtype=torch.float32, device=place),
        shares,
    )


def _fill(cache: CacheBytes) -> None:
    """Give every row random values: all-zero operands run faster than real ones."""
    if cache.mode is Mode.NONE:
        for side in (cache.k, cache.v):
            for first in range(0, side.shape[0], 4096):
                side[first : first + 4096].normal_()
        return
    cache.storage.random_(0, 256)
    for scales in (cache.k_scale, cache.v_scale):
        if scales is not None:
            scales.fill_(1.0 / 16)  # random bits as scales would hold nan
            scales.view(torch.int32).add_(7)  # a zero point in the middle


def _l2(place: str) -> int | None:
    size = getattr(torch.cuda.get_device_properties(torch.device(place)), "L2_cache_size", None)
    return int(size) if size else None
