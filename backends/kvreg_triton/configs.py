"""Launch parameters where nothing was tuned, by padded head width. Torch-free: select prints them.

Sources: tile 64 to 128 at 1 to 4 warps won every small grid on an H200 (docs/performance.md); block_m shrinks as the
head grows so that the float32 accumulator stays at 64 registers a thread: block_m * width / (32 * warps) = 64.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core.devices import Device
from kvreg.core.requests import Request


def padded(size: int) -> int:
    """Return the least power of two that is at least `size`; Triton's tensor shapes are powers of two."""
    return 1 << (size - 1).bit_length()


def write(device: Device, request: Request) -> Mapping[str, int]:
    """Rows of 4 heads' worth of a token tile: 16 rows up to width 128, so that one program reads at least 4 KiB."""
    width = padded(request.head_size)
    return {"rows": max(1, 2048 // width), "num_warps": 4, "num_stages": 1}


def decode(device: Device, request: Request) -> Mapping[str, int]:
    """One program a (token, KV head, split); 16 rows are the least that every matrix unit takes."""
    width = padded(request.head_size)
    return {
        "rows": max(16, padded(request.group)),
        "tile": 64 if width <= 128 else 32 if width <= 256 else 16,
        "num_warps": 4 if width >= 256 or request.group > 16 else 2,
        "num_stages": 2,
        "programs_per_unit": 4,
        "chunk": 512,
    }


def prefill(device: Device, request: Request) -> Mapping[str, int]:
    """Query tokens and the heads of a group share the rows of a block."""
    width = padded(request.head_size)
    rows = 64 if width <= 128 else 32 if width <= 256 else 16
    return {
        "rows": max(rows, padded(request.group)),
        "tile": 64 if width <= 64 else 32,
        "num_warps": 4,
        "num_stages": 2,
    }
