"""Caches made of raw bytes, for any layout, with dirt before, between and behind what a kernel may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

from kvreg.core import formats
from kvreg.core.layouts import PLANAR, LayoutId, Plane, strides
from kvreg.core.modes import Mode

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Model dtypes by the words of a request."""

FP8 = {formats.E4M3FN: torch.float8_e4m3fn, formats.E4M3FNUZ: torch.float8_e4m3fnuz}
"""Dtypes of fp8 rows by the words of a format."""
TENSOR_SCALES = (0.2, 0.1)
"""Scales of K and V in fp8_per_tensor. They differ and neither is 1, so that leaving one out or taking the other
shows; rows that are 30x in one channel pass the largest value, in K now and then and in V often."""

NAN_BYTE = 0xFF
"""As fill: every e4m3fn value, every scale and every bf16, fp16 or fp32 row is nan, so what leaks shows."""
FNUZ_NAN_BYTE = 0x80
"""The fill that makes e4m3fnuz values nan, and no scale."""
MARK_BYTE = 0xA5
"""As fill of a write check: a byte that nobody wrote still has it."""


class ViewFields(TypedDict):
    """The arguments of `kvreg.runtime.launchers.CacheView`."""

    mode: Mode
    head_size: int
    kv_heads: int
    page: int
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    alignment: int
    tensor_scales: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """A buffer and the views of it; has every attribute of `kvreg.runtime.launchers.CacheView`."""

    mode: Mode
    head_size: int
    kv_heads: int
    page: int
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    alignment: int
    layout: LayoutId
    storage: torch.Tensor
    """(bytes,) uint8, the whole buffer."""
    tensor_scales: torch.Tensor | None = None
    """(2,) float32, in fp8_per_tensor only; not part of the buffer."""

    def fields(self) -> ViewFields:
        """Return the arguments of a CacheView of this cache: `CacheView(**cache.fields())`."""
        return {
            "mode": self.mode,
            "head_size": self.head_size,
            "kv_heads": self.kv_heads,
            "page": self.page,
            "k": self.k,
            "v": self.v,
            "k_scale": self.k_scale,
            "v_scale": self.v_scale,
            "alignment": self.alignment,
            "tensor_scales": self.tensor_scales,
        }

    def fill(self, byte: int) -> None:
        """Set every byte of the buffer."""
        self.storage.fill_(byte)


def _alignment(steps: list[int]) -> int:
    return next(a for a in (16, 8, 4, 2, 1) if all(step % a == 0 for step in steps))


def nan_byte(mode: Mode, fp8: str = formats.E4M3FN) -> int:
    """Return the fill with which everything in a cache of this mode reads as nan."""
    return FNUZ_NAN_BYTE if mode is Mode.FP8_PER_TENSOR and fp8 == formats.E4M3FNUZ else NAN_BYTE


def _row_dtype(mode: Mode, dtype: str, fp8: str) -> torch.dtype:
    if mode is Mode.NONE:
        return DTYPES[dtype]
    if mode.is_fp8:
        return FP8[fp8]
    return torch.int8 if mode is Mode.INT8_PER_TOKEN_HEAD else torch.uint8


def allocate(
    mode: Mode,
    *,
    pages: int,
    page: int,
    kv_heads: int,
    head_size: int,
    dtype: str = "bf16",
    layout: LayoutId = PLANAR,
    device: torch.device | str = "cpu",
    fill: int | None = None,
    lead: int = 0,
    gap: int = 0,
    fp8: str = formats.E4M3FN,
    tensor_scales: Sequence[float] = TENSOR_SCALES,
) -> CacheBytes:
    """Return a cache whose every byte is `fill`, by default the byte that makes rows nan.

    `dtype` is the row type of mode `none`, `fp8` (e4m3fn or e4m3fnuz) that of the fp8 modes; `tensor_scales` (K, V)
    are those of fp8_per_tensor, no other mode has any. `lead` bytes lie before the first page and `gap` bytes behind
    every page (multiples of 4), as in a buffer that other layers share.
    """
    row_dtype = _row_dtype(mode, dtype, fp8)
    fill = nan_byte(mode, fp8) if fill is None else fill
    # The layouts speak of 16-bit rows in `none`; fp32 rows are rows of twice as many 16-bit values.
    widened = head_size * row_dtype.itemsize // 2 if mode is Mode.NONE else head_size
    planes = strides(layout, mode, widened, kv_heads, page)
    pitch = planes.page_bytes + gap
    storage = torch.full((lead + pages * pitch,), fill, dtype=torch.uint8, device=device)

    def view(plane: Plane, of: torch.dtype, width: int | None) -> torch.Tensor:
        unit = of.itemsize
        size, step = [pages, page, kv_heads], [pitch // unit, plane.slot // unit, plane.head // unit]
        if width is not None:
            size, step = [*size, width], [*step, plane.value or 1]
        usable = storage[: storage.numel() // unit * unit].view(of)
        return usable.as_strided(size, step, (lead + plane.offset) // unit)

    width = mode.row_bytes(widened) // row_dtype.itemsize
    rows = (planes.k, planes.v)
    steps = [storage.data_ptr() + lead, pitch, *(step for p in rows for step in (p.offset, p.value or p.slot, p.head))]
    return CacheBytes(
        mode=mode,
        head_size=head_size,
        kv_heads=kv_heads,
        page=page,
        k=view(planes.k, row_dtype, width),
        v=view(planes.v, row_dtype, width),
        k_scale=view(planes.k_scale, torch.float32, None) if planes.k_scale else None,
        v_scale=view(planes.v_scale, torch.float32, None) if planes.v_scale else None,
        alignment=_alignment(steps),
        layout=layout,
        storage=storage,
        tensor_scales=torch.tensor(tensor_scales, dtype=torch.float32, device=device)
        if mode is Mode.FP8_PER_TENSOR
        else None,
    )
