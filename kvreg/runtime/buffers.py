"""The memory of a cache, new or a caller's: its bytes, the pages that fit, and whether planes lie inside and apart."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvreg.core import layouts
from kvreg.core.errors import OutOfMemory, WrongCache, WrongShape, wrong
from kvreg.core.layouts import CacheStrides, LayoutId, Plane
from kvreg.core.modes import SCALE_BYTES, Mode
from kvreg.runtime.geometry import MOST_REACH, Geometry, Kind
from kvreg.runtime.tensors import require_dense

PAIR_BYTES = 2
"""8-bit rows begin at even bytes: kernels take two neighbouring codes as one value."""

INT64 = 2**63 - 1
"""The largest byte offset, and number of bytes, that torch counts."""


def zeroed(pages: int, page_bytes: int, place: torch.device) -> torch.Tensor:
    """Return the new memory of a cache, flat uint8 zeros; raises OutOfMemory where the device has no room for it."""
    size = pages * page_bytes
    refused: RuntimeError | None = None
    if size <= INT64:
        try:
            # A tensor made under inference mode could not be written outside of it.
            with torch.inference_mode(False):
                return torch.zeros(size, dtype=torch.uint8, device=place)
        except RuntimeError as error:
            # torch has a type for cards that are full; of the host's memory only the text tells.
            if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
                raise
            refused = error
    raise OutOfMemory(
        wrong(
            "memory",
            required=f"{size} bytes on {place}, {pages} pages of {page_bytes}",
            found="no room for them",
            remedy="ask for fewer pages, or free some memory",
        )
    ) from refused


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes from the first to the last element of `tensor` as a flat uint8 tensor on the same storage.

    Bytes that a strided tensor steps over belong to it; bytes before its storage offset and after its last element
    do not.
    """
    require_dense("buffer", tensor)
    if tensor.numel() == 0:
        raise WrongShape(
            wrong("buffer", required="at least one page", found=f"shape {tuple(tensor.shape)}", remedy="pass memory")
        )
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    item = tensor.element_size()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), tensor.storage_offset() * item, ((last + 1) * item,), (1,))


def pages_that_fit(kind: Kind, strides: CacheStrides, size: int) -> int:
    """Return how many pages lie wholly within `size` bytes; 0 when not even the first does."""
    fitting = []
    for _, plane, width in Geometry(kind, 1, strides).planes():
        room = size - _end(plane, width, 1, kind)
        fitting.append(0 if room < 0 else 1 + (room // plane.page if plane.page > 0 else 0))
    return min(fitting)


def check(geometry: Geometry, buffer: torch.Tensor) -> None:
    """Raise WrongCache unless each plane has the strides its mode needs, is aligned, inside `buffer` and apart.

    WrongShape for more pages than the buffer has bytes.
    """
    kind, strides, size = geometry.kind, geometry.strides, buffer.numel()
    if geometry.pages > size:
        required = f"at most {size}, a byte of the buffer for each"
        raise WrongShape(wrong("pages", required=required, found=geometry.pages, remedy="ask for fewer pages"))
    for name, plane in (("K scales", strides.k_scale), ("V scales", strides.v_scale)):
        if (plane is not None) != kind.mode.has_scales:
            raise WrongCache(
                wrong(
                    f"strides, {name}",
                    required="a plane" if kind.mode.has_scales else "None",
                    found="None" if plane is None else "a plane",
                    remedy=f"{kind.mode} {'has' if kind.mode.has_scales else 'has no'} scales of its own for each row",
                )
            )
    item = kind.stored_dtype.itemsize
    rows_start_at = item if kind.mode is Mode.INT4_PER_TOKEN_HEAD else max(item, PAIR_BYTES)
    dense = layouts.strides(
        LayoutId.parse(kind.layout), kind.mode, kind.head_size, kind.kv_heads, kind.page, kind.dtype
    )
    for (name, plane, width), (_, usual, _) in zip(
        geometry.planes(), replace(geometry, strides=dense).planes(), strict=False
    ):
        # Kernels are validated for rows or for tokens that are adjacent, as the layout has them.
        if (plane.value is None) != (usual.value is None) or (plane.value is not None and plane.slot != 1):
            raise WrongCache(
                wrong(
                    f"strides, {name}",
                    required=f"{'the values of a row' if usual.value is None else 'the tokens of a page'} adjacent",
                    found=f"slots {plane.slot} and values {plane.value or 1} bytes apart",
                    remedy=f"lay them out as {kind.layout} does, or select for another layout",
                )
            )
        negative = [step for step in (plane.offset, *_steps(plane)) if step < 0]
        if negative:
            raise WrongCache(
                wrong(f"strides, {name}", required="no negative byte", found=negative[0], remedy="start at the lowest")
            )
        step = SCALE_BYTES if "scales" in name else rows_start_at
        places = (buffer.data_ptr() + plane.offset, buffer.storage_offset() + plane.offset)
        odd = [byte for byte in (*places, *_steps(plane)) if byte % step]
        if odd:
            raise WrongCache(
                wrong(
                    f"strides, {name}",
                    required=f"address and strides that are multiples of {step} bytes",
                    found=f"{odd[0]}",
                    remedy="move the plane or the buffer's first byte",
                )
            )
        _check_reach(name, plane, width, SCALE_BYTES if "scales" in name else item, kind)
        end = _end(plane, width, geometry.pages, kind)
        if end > size:
            raise WrongCache(
                wrong(
                    f"strides, {name}",
                    required=f"{end} bytes for {geometry.pages} pages",
                    found=f"a buffer of {size}",
                    remedy="ask for fewer pages, or pass more memory",
                )
            )
    _check_apart(geometry)


def _check_reach(name: str, plane: Plane, width: int, item: int, kind: Kind) -> None:
    """Raise WrongCache when parts of a page lie further apart than `MOST_REACH` elements of `item` bytes.

    Those are its slots, its heads and, where they are not adjacent, the values of a row of `width` bytes.
    """
    axes = (
        ("slots of a page", kind.page, plane.slot),
        ("heads", kind.kv_heads, plane.head),
        ("values of a row", width, plane.value or 1),
    )
    for axis, count, stride in axes:
        reach = (count - 1) * stride // item
        if reach > MOST_REACH:
            raise WrongCache(
                wrong(
                    f"strides, {name}",
                    required=f"{axis} at most {MOST_REACH} elements apart",
                    found=reach,
                    remedy="let each page hold all of its slots and heads",
                )
            )


def _end(plane: Plane, width: int, pages: int, kind: Kind) -> int:
    """Return the first byte after the plane's last element."""
    return (
        plane.offset
        + (pages - 1) * plane.page
        + (kind.page - 1) * plane.slot
        + (kind.kv_heads - 1) * plane.head
        + (width if plane.value is None else (width - 1) * plane.value + 1)
    )


def _steps(plane: Plane) -> tuple[int, ...]:
    return (plane.page, plane.slot, plane.head, *(() if plane.value is None else (plane.value,)))


def _check_apart(geometry: Geometry) -> None:
    """Raise WrongCache when two elements share a byte, judged by every element of the first and last two pages.

    Planes that run into each other do so at a page's border or at the far end, whatever the number of pages.
    """
    kind, pages = geometry.kind, geometry.pages
    page = torch.tensor(sorted({p for p in (0, 1, pages - 2, pages - 1) if 0 <= p < pages}))
    slot, head = torch.arange(kind.page), torch.arange(kind.kv_heads)
    starts, widths, owners = [], [], []
    names = []
    for owner, (name, plane, width) in enumerate(geometry.planes()):
        at = plane.offset + (
            page[:, None, None] * plane.page + slot[None, :, None] * plane.slot + head[None, None, :] * plane.head
        )
        if plane.value is not None:
            at, width = at[..., None] + torch.arange(width) * plane.value, 1
        starts.append(at.flatten())
        widths.append(torch.full((at.numel(),), width))
        owners.append(torch.full((at.numel(),), owner))
        names.append(name)
    start, order = torch.sort(torch.cat(starts))
    end = start + torch.cat(widths)[order]
    clashes = (start[1:] < end[:-1]).nonzero()
    if clashes.numel():
        first = int(clashes[0])
        owner_at = torch.cat(owners)[order]
        one, other = names[int(owner_at[first])], names[int(owner_at[first + 1])]
        raise WrongCache(
            wrong(
                "strides",
                required="every row and scale in bytes of its own",
                found=f"{one} and {other} sharing byte {int(start[first + 1])}",
                remedy="mend the offsets or strides of the two",
            )
        )
