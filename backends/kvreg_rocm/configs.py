"""Launch parameters that a compilation for an AMD arch tries, in this order; the first sound one is its default.

CDNA (gfx9) has 512 registers a lane and waves of 64, of which few suffice: two warps and one tile in flight leave two
waves a SIMD where the shared parameters leave one. RDNA (gfx11, gfx12) has 256, waves of 32, and each stage of the
pipeline costs registers; gfx11 keeps matrix operands twice, once for each half of a wave. So there: one stage, four
warps that divide the accumulators, tiles of 16. A work-group has 64 KiB of LDS everywhere but on gfx950 (160 KiB).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request

_CDNA_DECODE: tuple[Mapping[str, int], ...] = (
    {"num_warps": 2, "num_stages": 2},
    {"num_warps": 4, "num_stages": 2},
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 4, "num_stages": 1, "tile": 16},
    {},
)
_CDNA_PREFILL: tuple[Mapping[str, int], ...] = (
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 4, "num_stages": 1, "tile": 16},
    {"num_warps": 8, "num_stages": 1},
    {"rows": 32, "tile": 16, "num_warps": 4, "num_stages": 1},
    {"rows": 16, "tile": 16, "num_warps": 4, "num_stages": 1},
    {},
)
_RDNA_WIDE_TILE: Mapping[str, int] = {"num_warps": 4, "num_stages": 1, "tile": 32}
"""Decode of heads up to 64 only: at 128 it spills 116 bytes on gfx1201 and 932 on gfx1100."""
_RDNA_DECODE: tuple[Mapping[str, int], ...] = (
    {"num_warps": 4, "num_stages": 1, "tile": 16},
    {"num_warps": 8, "num_stages": 1, "tile": 16},
    {"num_warps": 2, "num_stages": 1, "tile": 16},
)
_RDNA_WIDE_BLOCK: Mapping[str, int] = {"num_warps": 4, "num_stages": 1}
"""Prefill of heads up to 64 only: blocks of 64 rows spill 416 bytes at 128 on gfx1201 and 1344 on gfx1100."""
_RDNA_PREFILL: tuple[Mapping[str, int], ...] = (
    {"rows": 32, "tile": 16, "num_warps": 4, "num_stages": 1},
    {"rows": 32, "tile": 16, "num_warps": 8, "num_stages": 1},
    {"rows": 16, "tile": 16, "num_warps": 4, "num_stages": 1},
)


def candidates(mode: Mode, op: Op, device: Device, request: Request) -> Sequence[Mapping[str, int]]:
    """Return what differs from the shared parameters, in the order in which it is tried."""
    if op is Op.WRITE:
        return ({},)
    if device.arch.startswith("gfx9"):
        return _CDNA_DECODE if op is Op.DECODE else _CDNA_PREFILL
    order = _RDNA_DECODE if op is Op.DECODE else _RDNA_PREFILL
    wide = _RDNA_WIDE_TILE if op is Op.DECODE else _RDNA_WIDE_BLOCK
    return order if request.head_size > 64 else (wide, *order)
