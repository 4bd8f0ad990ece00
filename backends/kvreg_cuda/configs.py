"""Launch parameters that a compilation for an NVIDIA arch tries, in this order; the first sound one is its default.

First come the best of a small grid on an H200 (docs/performance.md). Where they spill or need more shared memory than
the arch has (99 KiB on sm_86, sm_89 and sm_120 against 227 on sm_90), more warps divide the accumulators and fewer
stages the tiles that are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg_triton.configs import padded, prefill_blocks

_DECODE: tuple[Mapping[str, int], ...] = (
    {},
    {"num_warps": 2, "num_stages": 3},
    {"num_warps": 2, "num_stages": 2},
    {"num_warps": 4, "num_stages": 2},
    {"num_warps": 4, "num_stages": 2, "tile": 32},
    {"num_warps": 4, "num_stages": 2, "tile": 16},
    {"num_warps": 8, "num_stages": 1, "tile": 16},
)
_ROTATED_VALUES = 512
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
    int4 = mode is Mode.INT4_PER_TOKEN_HEAD
    if op is Op.PREFILL:
        first = _unpacking(mode, request.head_size)
        return (first, *_PREFILL) if first else _PREFILL
    if op is Op.WRITE:
        return (_rotating_write(request.head_size) if int4 else _narrow_write(mode, request.head_size), {})
    return _DECODE if int4 else (_streaming(mode, request.head_size), *_DECODE)


def paged_prefill(mode: Mode, head_size: int, group: int) -> Mapping[str, int]:
    """Return the launch parameters of the portable prefill where those of kvreg_cuda.prefill leave sequences to it."""
    return {**prefill_blocks(mode, head_size, group), **_unpacking(mode, head_size)}


def _unpacking(mode: Mode, head_size: int) -> Mapping[str, int]:
    """Tiles of 64: of 4 x 4096 tokens at 128 int8 takes 2704 us instead of 3911, fp8_per_tensor 2320 instead of 3177
    and int4, whose second stage costs more than it hides, 3869 instead of 4161."""
    if mode is Mode.NONE or padded(head_size) > 128:
        return {}
    return {"tile": 64, "num_stages": 1 if mode is Mode.INT4_PER_TOKEN_HEAD else 2}


def _narrow_write(mode: Mode, head_size: int) -> Mapping[str, int]:
    """The best of grids on an H200 at six shapes: a warp, in which no row's largest value is shared; fp8 of one scale
    for all rows, which spills there, takes two. int8 of 8192 tokens of 8 heads of 128 takes 29 us instead of 44."""
    values = 1024 if mode is Mode.NONE else 512
    return {"rows": max(1, values // padded(head_size)), "num_warps": 2 if mode is Mode.FP8_PER_TENSOR else 1}


def _rotating_write(head_size: int) -> Mapping[str, int]:
    """One warp of few rows: the rotation then needs few exchanges between threads."""
    return {"rows": max(1, _ROTATED_VALUES // padded(head_size)), "num_warps": 1}


def _streaming(mode: Mode, head_size: int) -> Mapping[str, int]:
    """Four warps and five stages, two tiles in flight beside the one that is computed: 96 to 99 % of the bandwidth.

    Tiles hold as many bytes in 8 bits as in 16. Heads below 96 have small tiles and need more programs in flight.
    """
    width = padded(head_size)
    config = {"num_warps": 4, "num_stages": 5, "programs_per_unit": 2 if width >= 128 else 4}
    return config if mode is Mode.NONE or width > 128 else {**config, "tile": 128}
