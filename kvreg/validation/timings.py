"""The timed points of a trace: decode, prefill and write at the shapes that models run, with default parameters.

Runs inside a worker; returns plain JSON values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg.validation import calls
from kvreg.validation.work import device_of, use
from kvreg_tuning import timing
from kvreg_tuning.benchmark import Bench, Workload
from kvreg_tuning.subjects import moved_bytes


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


def _time(
    variant: Variant, head_size: int, point: Point, device: Device, place: str, bandwidth: float | None
) -> dict[str, Any]:
    bucket = Bucket(point.batch, point.context)
    taken = _measure(variant, head_size, point, device, place)
    if torch.device(place).type == "cuda":
        torch.cuda.empty_cache()
    moved = moved_bytes(variant.op, variant.mode, head_size, point.kv_heads, bucket)
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
    workload = Workload(Bucket(point.batch, point.context), point.group, point.kv_heads, head_size)
    request = Request(
        device=device.key,
        mode=variant.mode,
        head_size=head_size,
        q_heads=point.group * point.kv_heads,
        kv_heads=point.kv_heads,
        page=workload.page,
        batch=point.batch,
        context=max(point.context, 1),
    )
    config = dict(variant.default_config(device, request))
    bench = Bench(variant, workload, device, place)
    return timing.measure(bench.calls(config), torch.device(place).type)
