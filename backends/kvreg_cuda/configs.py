"""Launch parameters that a compilation for an NVIDIA arch tries, in this order; the first sound one is its default.

The shared parameters come first: they are the best of a small grid on an H200. Where they spill or need more shared
memory than the arch has (99 KiB on sm_86, sm_89 and sm_120 against 227 on sm_90), more warps divide the accumulators
and fewer stages the tiles that are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request

_DECODE: tuple[Mapping[str, int], ...] = (
    {},
    {"num_warps": 2, "num_stages": 3},
    {"num_warps": 2, "num_stages": 2},
    {"num_warps": 4, "num_stages": 2},
    {"num_warps": 4, "num_stages": 2, "tile": 32},
    {"num_warps": 4, "num_stages": 2, "tile": 16},
    {"num_warps": 8, "num_stages": 1, "tile": 16},
)
_PREFILL: tuple[Mapping[str, int], ...] = (
    {},
    {"num_stages": 1},
    {"num_warps": 8},
    {"rows": 32, "num_stages": 2},
    {"rows": 32, "tile": 16, "num_stages": 2},
    {"rows": 16, "tile": 16, "num_stages": 1},
)


def candidates(mode: Mode, op: Op, device: Device, request: Request) -> Sequence[Mapping[str, int]]:
    """Return what differs from the shared parameters, in the order in which it is tried."""
    return {Op.DECODE: _DECODE, Op.PREFILL: _PREFILL}.get(op, ({},))
