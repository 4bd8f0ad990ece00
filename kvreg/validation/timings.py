"""The timed points of a trace: decode, prefill and write at the shapes that models run, over rotating buffers.

One cache holds the rows of every rotation; each call of a measurement reads other pages of it, so that none finds its
bytes in the L2. Runs inside a worker; returns plain JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvreg.core.devices import Device
from kvreg.core.layouts import DEFAULT
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg.runtime.launchers import AttendCall, CacheView, SplitPlan, load
from kvreg.testing import CacheBytes, allocate
from kvreg.validation import calls
from kvreg.validation.work import device_of, use
from kvreg_tuning import timing

PAGE = 16
DTYPE = torch.bfloat16
VALUE_BYTES = 2
MOST_BYTES = 24 << 30
"""Cache memory of one measurement; more rotations than fit are left out."""


@dataclass(frozen=True, slots=True)
class Point:
    """One workload. `batch` counts sequences; of a write, tokens (its `context` is 0)."""

    batch: int
    context: int
    group: int
    kv_heads: int


POINTS = {
    Op.DECODE: (
        *(Point(batch, context, 4, 8) for batch in (1, 8, 32) for context in (1024, 8192)),
        Point(32, 1088, 1, 32),  # Phi-3-mini serving 1024 tokens in, 128 out
    ),
    Op.PREFILL: (Point(4, 4096, 4, 8),),
    Op.WRITE: (Point(32, 0, 4, 8), Point(8192, 0, 4, 8)),
}
SMOKE_POINTS = {
    Op.DECODE: (Point(2, 64, 4, 2),),
    Op.PREFILL: (Point(1, 64, 4, 2),),
    Op.WRITE: (Point(32, 0, 4, 2),),
}
"""Shapes that try the path in a second on any machine; their times mean nothing."""


def read_bandwidth(place: str, size: int = timing.READ_BYTES) -> dict[str, Any]:
    """Return the read bandwidth of a device in bytes per second."""
    use(place)
    found = timing.read_bandwidth(torch.device(place).type, size=size)
    return {"bytes_per_second": found, "clock_mhz": timing.sm_clock()}


def time_variant(
    variant: str, head_size: int, device: str, place: str, bandwidth: float | None, smoke: bool = False
) -> list[dict[str, Any]]:
    """Return the variant's times at its op's points.

    Each is {batch, context, group, us, spread, method, fraction_of_limit, clock_mhz}; the clock is the one after the
    last point.

    `bandwidth`: bytes per second that the share of the limit refers to. Prefill is bound by arithmetic and has none.
    """
    use(place)
    on = device_of(device)
    of = calls.variant_of(variant, on.platform)
    points = (SMOKE_POINTS if smoke else POINTS)[of.op]
    found = [
        _time(of, head_size, point, on, place, bandwidth)
        for point in points
        if point.group <= of.constraints.group_max
    ]
    clock = timing.sm_clock() if torch.device(place).type == "cuda" else None
    return [{**point, "clock_mhz": clock} for point in found]


def moved_bytes(op: Op, mode: Mode, head_size: int, point: Point) -> int | None:
    """Return the bytes that a workload cannot but move: the cache rows read, or rows read and stored by a write."""
    stored = mode.bytes_per_token_head(head_size) * point.kv_heads
    if op is Op.DECODE:
        return point.batch * point.context * stored
    if op is Op.WRITE:
        return point.batch * (stored + 2 * VALUE_BYTES * head_size * point.kv_heads)
    return None


def _time(
    variant: Variant, head_size: int, point: Point, device: Device, place: str, bandwidth: float | None
) -> dict[str, Any]:
    taken = _measure(variant, head_size, point, device, place)
    if torch.device(place).type == "cuda":
        torch.cuda.empty_cache()
    moved = moved_bytes(variant.op, variant.mode, head_size, point)
    share = moved / bandwidth / (taken.us * 1e-6) if moved and bandwidth else None
    return {
        "batch": point.batch,
        "context": point.context,
        "group": point.group,
        "us": taken.us,
        "spread": taken.spread,
        "method": taken.method,
        "fraction_of_limit": share,
    }


def _measure(variant: Variant, head_size: int, point: Point, device: Device, place: str) -> timing.Measurement:
    tokens = point.batch * max(point.context, 1)
    per_rotation = -(-tokens // PAGE) if variant.op is Op.WRITE else point.batch * -(-point.context // PAGE)
    page_bytes = variant.mode.bytes_per_token_head(head_size) * point.kv_heads * PAGE
    moved = moved_bytes(variant.op, variant.mode, head_size, point) or per_rotation * page_bytes
    on_card = torch.device(place).type == "cuda"
    count = timing.rotations(moved, _l2(place)) if on_card else 2
    count = max(1, min(count, MOST_BYTES // (per_rotation * page_bytes)))
    cache = allocate(
        variant.mode,
        pages=count * per_rotation,
        page=PAGE,
        kv_heads=point.kv_heads,
        head_size=head_size,
        layout=DEFAULT,
        device=place,
        fill=0,
    )
    request = Request(
        device=device.key,
        mode=variant.mode,
        head_size=head_size,
        q_heads=point.group * point.kv_heads,
        kv_heads=point.kv_heads,
        page=PAGE,
        batch=point.batch,
        context=max(point.context, 1),
    )
    config = dict(variant.default_config(device, request))
    make = _writes if variant.op is Op.WRITE else _attends
    return timing.measure(make(variant, cache, point, config, count, device), torch.device(place).type)


def _writes(
    variant: Variant, cache: CacheBytes, point: Point, config: Mapping[str, int], count: int, device: Device
) -> list[timing.Call]:
    launcher, view = load(variant.launcher), CacheView(**cache.fields())
    place = cache.storage.device
    k, v = (torch.randn(point.batch, cache.kv_heads, cache.head_size, device=place, dtype=DTYPE) for _ in range(2))
    pages = -(-point.batch // PAGE)

    def call(rotation: int) -> timing.Call:
        # Page-contiguous slots, as an engine hands out pages; the pages lie in random order.
        order = torch.randperm(pages) + rotation * pages
        slots = (order[:, None] * PAGE + torch.arange(PAGE)).reshape(-1)[: point.batch].to(place)
        return lambda: launcher(view, k, v, slots, config)

    return [call(rotation) for rotation in range(count)]


def _attends(
    variant: Variant, cache: CacheBytes, point: Point, config: Mapping[str, int], count: int, device: Device
) -> list[timing.Call]:
    launcher, view = load(variant.launcher), CacheView(**cache.fields())
    place = cache.storage.device
    _fill(cache)
    pages = -(-point.context // PAGE)
    queries = point.context if variant.op is Op.PREFILL else 1
    tokens, heads = point.batch * queries, point.group * point.kv_heads
    q = torch.randn(tokens, heads, cache.head_size, device=place, dtype=DTYPE)
    out = torch.empty_like(q)
    seq_lens = torch.full((point.batch,), point.context, dtype=torch.int32, device=place)
    cu_q = torch.arange(point.batch + 1, dtype=torch.int32, device=place) * queries
    splits = launcher.splits(point.batch, point.kv_heads, point.group, point.context, device.compute_units, config)
    split = calls.UNSPLIT
    if variant.op is Op.DECODE and splits > 1:
        rows = (tokens, heads, splits)
        split = SplitPlan(
            splits,
            0,
            torch.empty((*rows, cache.head_size), dtype=torch.float32, device=place),
            torch.empty((*rows, 2), dtype=torch.float32, device=place),
        )

    def call(rotation: int) -> timing.Call:
        order = torch.randperm(point.batch * pages) + rotation * point.batch * pages
        table = order.to(torch.int32).view(point.batch, pages).to(place)
        asked = AttendCall(q, view, table, seq_lens, cu_q, out, None, cache.head_size**-0.5, split)
        return lambda: launcher(asked, config)

    return [call(rotation) for rotation in range(count)]


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
