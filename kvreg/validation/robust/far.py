"""Offsets that no 32-bit number holds: caches and row strides that reach beyond 2^31 bytes, elements and scales.

The same rows are written into a small cache and into a large one, whose pages lie by turns at its start and at its
far end; bytes, outputs and lse must be equal bit for bit, and no other byte of the large one may change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kvreg.core.layouts import known
from kvreg.core.modes import Mode
from kvreg.runtime.attention import write
from kvreg.testing import MARK_BYTE, Batch, Kind
from kvreg.validation.robust.findings import Finding, judged, skipped
from kvreg.validation.robust.lineups import LineUp, Result, attended, differing, line_up, wait

SIZES = (1 << 31, 1 << 33)
"""Bytes before the far pages. A signed 32-bit byte offset ends at the first; at the second every offset is too large
for 32 bits, signed or not, counted in bytes, in bf16 values or in the 4-byte scales of rows."""
SLACK = 1 << 30
"""Bytes that a check needs beside its cache."""
ROW_REACH = 1 << 31
"""Elements between the first and the last row of q, k, v and the output when they lie far apart."""
CHUNK = 1 << 29
"""Bytes that are compared at once."""
ALL_LAYOUTS = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
"""The others take the same kernels as `none`, or a write that addresses as int4's does."""
KINDS: tuple[Kind, ...] = ("decode", "prefill")


def caches(place: str, mode: str, decode: str, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Check caches that are larger than each of `sizes`; a task of a worker."""
    of = line_up(place, mode, decode)
    layouts = known(of.mode) if of.mode in ALL_LAYOUTS else known(of.mode)[:1]
    return _within(of, max(sizes), lambda: _caches(of, layouts, sizes)).to_json()


def rows(place: str, mode: str, decode: str, reach: int = ROW_REACH) -> dict[str, Any]:
    """Check rows of q, k, v and the output that lie far apart; a task of a worker."""
    of = line_up(place, mode, decode)
    return _within(of, 2 * reach, lambda: _rows(of, reach)).to_json()


def _within(of: LineUp, size: int, check: Callable[[], Finding]) -> Finding:
    """Run a check of `size` bytes where there is room for it."""
    reason = lacking(of, size)
    if reason is not None:
        return skipped(reason)
    try:
        return check()
    except torch.OutOfMemoryError:
        return skipped(f"needs {(size + SLACK) / 2**30:.1f} GiB, which other processes have taken meanwhile")
    finally:
        if of.place.is_card:  # for the processes beside this one
            getattr(torch, torch.device(of.place.torch_device).type).empty_cache()


def lacking(of: LineUp, size: int) -> str | None:
    """Return why a check of `size` bytes cannot run, None where it can.

    A host takes memory only where it is touched, but refuses to promise more than it has.
    """
    device, needed = torch.device(of.place.torch_device), size + SLACK
    if of.place.is_card:
        found, _ = getattr(torch, device.type).mem_get_info(device)
    else:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None if found >= needed else f"needs {needed / 2**30:.1f} GiB of memory, found {found / 2**30:.1f}"


def _caches(of: LineUp, layouts: tuple[str, ...], sizes: tuple[int, ...]) -> Finding:
    failures = [
        f"{layout}, {size} bytes, {kind}: {text}"
        for layout in layouts
        for size in sizes
        for kind in KINDS
        for text in beyond(of, layout, size, kind)
    ]
    powers = ", ".join(f"2^{size.bit_length() - 1}" for size in sizes)
    return judged(f"{len(layouts) * len(sizes) * len(KINDS)} batches in caches beyond {powers} bytes", failures)


def beyond(of: LineUp, layout: str, size: int, kind: Kind) -> Iterator[str]:
    """Compare a cache whose far pages lie beyond `size` bytes with a small one; yields what differs."""
    batch = of.batch(kind, layout)
    near = of.cache(batch.pages, layout)
    page_bytes = near.geometry.strides.page_bytes
    before = -(-size // page_bytes)
    device = of.place.torch_device
    buffer = torch.empty((before + batch.pages) * page_bytes, dtype=torch.uint8, device=device)
    page = torch.arange(batch.pages, device=device)
    moved = torch.where(page % 2 == 0, page, page + before)
    far, pages = of.over(buffer, layout), buffer.view(-1, page_bytes)
    if of.place.is_card:
        buffer.fill_(MARK_BYTE)
    else:
        pages[moved] = MARK_BYTE
    there = _moved(batch, moved)
    write(near, batch.k, batch.v, batch.slots)
    write(far, there.k, there.v, there.slots)
    wait(of.place)
    yield from _unequal("bytes of the pages", pages[moved], near.buffer.view(-1, page_bytes))
    yield from _unequal_results(attended(far, there), attended(near, batch))
    if of.place.is_card:  # on a host this would touch all of the memory
        pages[moved] = MARK_BYTE
        changed = sum(int((part != MARK_BYTE).sum()) for part in buffer.split(CHUNK))
        if changed:
            yield f"required no change of any other byte, found {changed} changed"


def _moved(batch: Batch, moved: torch.Tensor) -> Batch:
    """Return the batch with page p in the place of page moved[p]."""
    slot = batch.slots.clamp(min=0)
    slots = torch.where(batch.slots < 0, -1, moved[slot // batch.page] * batch.page + slot % batch.page)
    return replace(batch, slots=slots, page_table=moved[batch.page_table.long()].to(torch.int32))


def _rows(of: LineUp, reach: int) -> Finding:
    failures = []
    for kind in KINDS:
        batch = of.batch(kind)
        near, far = of.cache(batch.pages), of.cache(batch.pages)
        apart, out = _apart(batch, reach)
        write(near, batch.k, batch.v, batch.slots)
        write(far, apart.k, apart.v, apart.slots)
        wait(of.place)
        found = [*_unequal("bytes of the cache", far.buffer, near.buffer)]
        found += _unequal_results(attended(far, apart, out=out), attended(near, batch))
        failures += [f"{kind}: {text}" for text in found]
    return judged(f"{len(KINDS)} batches whose rows of q, k, v and output lie {reach} elements apart", failures)


def _apart(batch: Batch, reach: int) -> tuple[Batch, torch.Tensor]:
    """Return the batch and an output whose first and last rows lie at least `reach` elements apart, in one buffer."""
    tensors = (batch.k, batch.v, batch.q, batch.q)
    widths = [x.shape[1] * x.shape[2] for x in tensors]
    units = max(x.shape[0] for x in tensors)
    # Every tensor has a column of its own in each unit; those of few rows leave units out between theirs.
    skips = [max(1, (units - 1) // max(1, x.shape[0] - 1)) for x in tensors]
    last = min(skip * (x.shape[0] - 1) for skip, x in zip(skips, tensors, strict=True))
    # A multiple of 64 elements, like adjacent rows: kernels compiled for those serve here too.
    step = -(-(reach // last + sum(widths)) // 64) * 64
    buffer = torch.empty(step * units, dtype=batch.q.dtype, device=batch.q.device)
    views, column = [], 0
    for x, width, skip in zip(tensors, widths, skips, strict=True):
        view = buffer.as_strided(x.shape, (skip * step, x.shape[2], 1), column)
        view.copy_(x)
        views.append(view)
        column += width
    k, v, q, out = views
    return replace(batch, k=k, v=v, q=q), out.fill_(torch.nan)


def _unequal(what: str, found: torch.Tensor, right: torch.Tensor) -> Iterator[str]:
    others = differing(found, right)
    if others:
        yield f"{what}: required those of the small one, found {others} of {right.numel()} others"


def _unequal_results(found: Result, right: Result) -> Iterator[str]:
    yield from _unequal("output", found[0], right[0])
    yield from _unequal("lse", found[1], right[1])
