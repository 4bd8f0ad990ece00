"""Launch parameters where nothing was tuned. Torch-free: select prints them.

A start for the tuner and for the order that a platform tries; what an H200 has shown stands in kvreg_cuda.configs.
Rows and tiles shrink as the head grows, so that the float32 accumulator stays in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core.modes import Mode
from kvreg.core.requests import Request


def padded(size: int) -> int:
    """Return the least power of two that is at least `size`; Triton's tensor shapes are powers of two."""
    return 1 << (size - 1).bit_length()


def write(mode: Mode, request: Request) -> Mapping[str, int]:
    """A program takes 1024 values: few enough that a decode step's 32 tokens spread over the card."""
    return {"rows": max(1, 1024 // padded(request.head_size)), "num_warps": 2, "num_stages": 1}


def decode(mode: Mode, request: Request) -> Mapping[str, int]:
    """One program a (token, KV head, split); 16 rows are the least that every matrix unit takes.

    One warp wins for int4: its row reductions stay in registers.
    """
    width, rows = padded(request.head_size), max(16, padded(request.group))
    int4 = mode is Mode.INT4_PER_TOKEN_HEAD
    return {
        "rows": rows,
        "tile": (32 if int4 else 64) if width <= 128 else 32 if width <= 256 else 16,
        "num_warps": 4 if width >= 256 or rows > 16 else 1 if int4 else 2,
        "num_stages": 3,
        "programs_per_unit": 8 if int4 else 4,
        "chunk": 512,
    }


def prefill(mode: Mode, request: Request) -> Mapping[str, int]:
    """What `prefill_blocks` says of a request."""
    return prefill_blocks(mode, request.head_size, request.group)


def prefill_blocks(mode: Mode, head_size: int, group: int) -> dict[str, int]:
    """Query tokens and the heads of a group share the rows of a block; 128 rows of width 128 spill on sm_90."""
    width = padded(head_size)
    rows = 64 if width <= 128 else 32 if width <= 256 else 16
    return {
        "rows": max(rows, padded(group)),
        "tile": 64 if mode is Mode.NONE and width <= 128 else 32 if width <= 128 or mode is Mode.NONE else 16,
        "num_warps": 4 if width <= 128 or mode is Mode.NONE else 8,
        "num_stages": 2,
    }
