"""Whole pages and stored rows: copying, reading back, and moving a cache to another layout. None of it waits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from kvreg.core import layouts
from kvreg.core.errors import WrongShape, wrong
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode, rotation_block
from kvreg.core.selections import Selection
from kvreg.core.signs import signs
from kvreg.runtime import buffers, checks, tensors, values
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import Geometry, interned
from kvreg.runtime.launchers import CacheView

_ZERO_POINT_BITS = 15
"""Mask of the bits of an int4 row's stored scale that hold its zero point."""


def copy_pages(cache: KVCache, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy page src[i] onto page dst[i], as if all were read before any is written.

    `src`, `dst`: (n,) int32 or int64 on the cache's device; a page may be both read and written, but is written once.
    Bytes between the planes of a foreign layout stay as they are. That pages exist and none is written twice is
    checked on the cpu only. Takes memory for the copied pages of one plane at a time.
    """
    checks.is_cache(cache)
    tensors.indexes("src", src, cache.device)
    tensors.indexes("dst", dst, cache.device)
    if src.shape[0] != dst.shape[0]:
        raise WrongShape(
            wrong(
                "dst",
                required=f"{src.shape[0]} pages, as src names",
                found=dst.shape[0],
                remedy="pass one target for each source",
            )
        )
    if cache.device.type == "cpu":
        values.check_pages("src", src, cache.pages, distinct=False)
        values.check_pages("dst", dst, cache.pages, distinct=True)
    src, dst = src.long(), dst.long()
    with torch.no_grad():
        for plane in _planes(cache.view):
            plane.index_copy_(0, dst, plane.index_select(0, src))


def dequantize(cache: KVCache, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V of `slots`, each (n, kv_heads, head_size) float32, in the model's channels (not rotated).

    `slots`: (n,) int32 or int64 on the cache's device; a negative slot gives zeros. That slots exist is checked on the
    cpu only.
    """
    checks.is_cache(cache)
    tensors.indexes("slots", slots, cache.device)
    if cache.device.type == "cpu":
        values.check_slots(slots, cache.slots, distinct=False)
    known = slots >= 0
    slot = slots.clamp(min=0).long()
    page, place = slot // cache.kind.page, slot % cache.kind.page
    view = cache.view

    def rows(side: int, plane: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        stored = _as_integers(plane)[page, place].view(plane.dtype)
        if scales is not None:
            factor = scales[page, place]
        else:
            factor = None if view.tensor_scales is None else view.tensor_scales[side]
        return torch.where(known[:, None, None], _rows(cache, stored, factor), 0.0)

    with torch.no_grad():
        return rows(0, view.k, view.k_scale), rows(1, view.v, view.v_scale)


def convert(cache: KVCache, layout: LayoutId | str) -> KVCache:
    """Return a new cache with the same rows, bit for bit, densely laid out as `layout`.

    The old cache is left as it is; both take memory at once, and share `tensor_scales` where the mode has them. Also
    the way from foreign strides to kvreg's own.
    Raises UsageError for a layout that is not known, OutOfMemory where there is no room for both.
    """
    checks.is_cache(cache)
    wanted = LayoutId.of(layout)
    kind = interned(replace(cache.kind, layout=str(wanted)))
    strides = layouts.strides(wanted, kind.mode, kind.head_size, kind.kv_heads, kind.page, kind.dtype)
    geometry = Geometry(kind, cache.pages, strides)
    with torch.inference_mode(False), torch.no_grad():
        buffer = buffers.zeroed(cache.pages, strides.page_bytes, cache.device)
        moved = KVCache(_laid_out(cache.selection, wanted), geometry, buffer, cache.view.tensor_scales)
        for target, source in zip(_planes(moved.view), _planes(cache.view), strict=True):
            target.copy_(source)
    return moved


def _laid_out(selection: Selection, layout: LayoutId) -> Selection:
    """Return the selection as it reads with another layout; the kernels take both."""
    result = selection.result
    moved = replace(result, layout=layout, format=replace(result.format, layout_id=str(layout)))
    return replace(selection, request=replace(selection.request, layout=layout), results=(moved,))


def _planes(view: CacheView) -> list[torch.Tensor]:
    """Return the planes that the mode has as integers: the same bits, and torch indexes no fp8 tensor."""
    planes = (view.k, view.v, view.k_scale, view.v_scale)
    return [_as_integers(plane) for plane in planes if plane is not None]


def _as_integers(plane: torch.Tensor) -> torch.Tensor:
    return plane.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[plane.element_size()])


@lru_cache
def _channel_signs(head_size: int, device: Any) -> torch.Tensor:
    block = rotation_block(head_size)
    with torch.inference_mode(False):
        return torch.tensor(signs(block) * (head_size // block), dtype=torch.float32, device=device)


def _rows(cache: KVCache, stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Return the float32 rows that `stored` (n, kv_heads, row) and `scales`, (n, kv_heads) or one, stand for."""
    if scales is None:
        return stored.float()
    if cache.mode is not Mode.INT4_PER_TOKEN_HEAD:
        return stored.float() * (scales[..., None] if scales.dim() else scales)
    bits = scales.view(torch.int32)
    zero, scale = bits & _ZERO_POINT_BITS, (bits & ~_ZERO_POINT_BITS).view(torch.float32)
    codes = torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2)
    rotated = (codes.float() - zero[..., None]) * scale[..., None]
    head_size, block = cache.kind.head_size, rotation_block(cache.kind.head_size)
    half = 1
    while half < block:  # H, one butterfly level a turn; a matrix product could round through TF32
        low, high = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
        rotated = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        half *= 2
    return rotated * _channel_signs(head_size, cache.device) / block
