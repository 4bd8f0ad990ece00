"""Where the planes of a caller's memory lie: as told, or as its shape says."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from kvreg.core.errors import WrongCache, WrongShape, shown, wrong
from kvreg.core.layouts import CacheStrides, Plane
from kvreg.core.scalars import whole
from kvreg.runtime.buffers import INT64
from kvreg.runtime.geometry import Kind


def read_strides(kind: Kind, tensor: torch.Tensor, dense: CacheStrides) -> tuple[CacheStrides, int]:
    """Return where the planes of `tensor` lie when the caller gave no strides, and the pages that it holds.

    A two-dimensional tensor has one page a row, whatever the distance of its rows; any other must be contiguous and
    holds pages one behind the other. Raises WrongCache for a tensor that neither describes.
    """
    item = tensor.element_size()
    if tensor.dim() == 2 and (tensor.shape[1] == 1 or tensor.stride(1) == 1):
        if tensor.shape[1] * item < dense.page_bytes:
            raise WrongShape(
                wrong(
                    "buffer",
                    required=f"rows of at least {dense.page_bytes} bytes, one page of {kind.layout}",
                    found=f"{tensor.shape[1] * item} bytes",
                    remedy="pass a flat tensor, or rows that hold a page",
                )
            )
        pitch = tensor.stride(0) * item if tensor.shape[0] > 1 else dense.page_bytes
        return spread(dense, pitch), int(tensor.shape[0])
    if not tensor.is_contiguous():
        raise WrongCache(
            wrong(
                "buffer",
                required="a contiguous tensor, or one page a row",
                found=f"shape {tuple(tensor.shape)} with strides {tensor.stride()}",
                remedy="say where the planes lie: KVCache.from_buffer(selection, tensor, strides=CacheStrides(...))",
            )
        )
    return dense, tensor.numel() * item // dense.page_bytes


def spread(strides: CacheStrides, page_bytes: int) -> CacheStrides:
    """Return `strides` with pages `page_bytes` apart."""

    def moved(plane: Plane | None) -> Plane | None:
        return None if plane is None else replace(plane, page=page_bytes)

    return CacheStrides(
        replace(strides.k, page=page_bytes),
        replace(strides.v, page=page_bytes),
        moved(strides.k_scale),
        moved(strides.v_scale),
        page_bytes,
    )


def whole_strides(strides: object) -> CacheStrides:
    """Return strides with ints for their numbers.

    Raises WrongCache unless it is a CacheStrides of planes whose every number is whole and held by 64 bits.
    """
    if not isinstance(strides, CacheStrides):
        raise WrongCache(
            wrong(
                "strides",
                required="a CacheStrides",
                found=type(strides).__name__,
                remedy="build one of kvreg.core.layouts, or leave it out for dense pages",
            )
        )
    found: dict[str, Any] = {}
    for side in ("k", "v", "k_scale", "v_scale"):
        plane = getattr(strides, side)
        if isinstance(plane, Plane):
            found[side] = _whole_plane(side, plane)
        elif plane is not None or not side.endswith("scale"):
            raise WrongCache(
                wrong(
                    f"strides, {side}",
                    required="a Plane",
                    found=type(plane).__name__,
                    remedy="say where its rows lie: kvreg.core.layouts.Plane(offset, page, slot, head)",
                )
            )
    return replace(strides, page_bytes=_whole_bytes("strides, page_bytes", strides.page_bytes), **found)


def _whole_plane(side: str, plane: Plane) -> Plane:
    numbers = {each.name: getattr(plane, each.name) for each in fields(Plane)}
    if plane.value is None:
        del numbers["value"]
    return Plane(**{name: _whole_bytes(f"strides, {side}.{name}", number) for name, number in numbers.items()})


def _whole_bytes(subject: str, number: object) -> int:
    count = None if isinstance(number, torch.Tensor) else whole(number)
    if count is None or abs(count) > INT64:
        required = "a whole number of bytes that 64 bits hold"
        raise WrongCache(wrong(subject, required=required, found=shown(number), remedy="pass such an int"))
    return count
