"""Launch parameters that a compilation for an Intel arch tries, in this order; the first sound one is its default.

SPIR-V names no registers, so no figure here tells one from another. What decides is arithmetic: a hardware thread has
128 registers of 64 bytes (8 KiB), and the float32 accumulator of 16 rows x 128 channels alone takes them all in one
sub-group, so four share it. Stages are the distance of prefetches of 2D block loads; these kernels make none
(kvreg_xpu.differences), so one is enough. ocloc 22.43 counts about as many spills of int4 at head size 128 with 1, 4
and 8 sub-groups in decode (703, 725, 733), and fewer with 4 than with 8 or 16 in prefill (815, 1341, 865).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request

_DECODE: tuple[Mapping[str, int], ...] = (
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 8, "num_stages": 1, "tile": 16},
    {"num_stages": 1},
)
_PREFILL: tuple[Mapping[str, int], ...] = (
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 16, "num_stages": 1},
    {"rows": 32, "tile": 16, "num_warps": 8, "num_stages": 1},
)


def candidates(mode: Mode, op: Op, device: Device, request: Request) -> Sequence[Mapping[str, int]]:
    """Return what differs from the shared parameters, in the order in which it is tried."""
    return {Op.DECODE: _DECODE, Op.PREFILL: _PREFILL}.get(op, ({},))
