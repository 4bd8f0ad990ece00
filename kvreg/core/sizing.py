"""How much memory a KV cache takes: whole pages of each layer, as a cache of that layout lays them out.

Bytes of a page come from `kvreg.core.layouts`, the function that allocation itself uses, so that a size printed here
is the size allocated, for models of several head sizes too. A GB is 10^9 bytes: a card's nominal gigabytes hold at
least that many, so what is said to fit does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvreg.core import layouts
from kvreg.core.devices import Device
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.selections import Selection

GB = 10**9

_LONGEST = 1 << 40
"""Tokens beyond which a context is not searched: more than any card holds."""


@dataclass(frozen=True, slots=True)
class Part:
    """Layers whose caches have one shape."""

    layers: int
    """That keep a cache of their own."""
    head_size: int
    kv_heads: int
    window: int | None = None
    """Keys that a query sees, its own included; None for all of the context."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The cache of a whole model in one mode, beside bf16, and what of it fits a card."""

    layers: int
    bytes: int
    """Of all layers and sequences, whole pages."""
    bf16_bytes: int
    """Of the same pages in bf16."""
    memory_bytes: int | None
    """The card's; None where it is unknown."""
    weights_bytes: int
    """Taken off the card's memory before anything is said to fit."""
    sequences_fit: int | None
    """How many sequences of the context fit; None where the memory is unknown."""
    context_fit: int | None
    """The longest context at which the whole batch fits; None where the memory is unknown or no context is too long
    (every layer has a window)."""

    @property
    def compression(self) -> float:
        """How many times smaller than bf16."""
        return self.bf16_bytes / self.bytes if self.bytes else 1.0


def pages_of(context: int, page: int, window: int | None = None) -> int:
    """Return the pages that one sequence of `context` tokens needs in one layer.

    A window of w tokens touches at most ceil((w - 1) / page) + 1 pages wherever it begins; pages behind it are free
    for others.
    """
    pages = -(-context // page)
    if window is not None:
        pages = min(pages, -(-(window - 1) // page) + 1)
    return pages


def memory_of(device: Device) -> int | None:
    """Return a card's memory in bytes, None where it is unknown."""
    return None if device.memory_gb is None else int(device.memory_gb * GB)


def cache_size(
    parts: Sequence[Part],
    mode: Mode,
    device: Device,
    *,
    batch: int,
    context: int,
    page: int,
    layout: LayoutId,
    dtype: str = "bf16",
    weights_bytes: int = 0,
) -> CacheSize:
    """Return the size of a cache of `batch` sequences of `context` tokens and what of it fits `device`.

    `dtype` is the model's, which mode none stores. `weights_bytes` is what the card holds besides. A mode that lacks
    `layout`, as one that is refused for it or the bf16 that int4 is compared with, is sized in its own default.
    """

    def sequence(tokens: int, kind: Mode = mode, stored: str = dtype) -> int:
        where = layout if str(layout) in layouts.known(kind) else layouts.default(kind)
        return sum(
            each.layers
            * pages_of(tokens, page, each.window)
            * layouts.strides(where, kind, each.head_size, each.kv_heads, page, stored).page_bytes
            for each in parts
        )

    one = sequence(context)
    memory = memory_of(device)
    free = None if memory is None else max(memory - weights_bytes, 0)

    def fits(tokens: int) -> bool:
        return free is not None and batch * sequence(tokens) <= free

    longest = None
    if free is not None and not fits(_LONGEST):
        longest = _largest(lambda pages: fits(pages * page), _LONGEST // page) * page
    return CacheSize(
        layers=sum(each.layers for each in parts),
        bytes=batch * one,
        bf16_bytes=batch * sequence(context, Mode.NONE, "bf16"),
        memory_bytes=memory,
        weights_bytes=weights_bytes,
        sequences_fit=None if free is None else free // one if one else None,
        context_fit=longest,
    )


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 0 to `most` for which `holds`; it holds for all smaller ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def sizes_of(answer: Selection, layers: int, weights_bytes: int = 0) -> dict[Mode, CacheSize]:
    """Return the size of a cache of `layers` layers in each mode that a selection answers, refused ones included."""
    request = answer.request
    part = Part(layers, request.head_size, request.kv_heads)
    return {
        each.mode: cache_size(
            [part],
            each.mode,
            answer.resolution.device,
            batch=request.batch,
            context=request.context,
            page=request.page,
            layout=each.layout,
            dtype=request.dtype,
            weights_bytes=weights_bytes,
        )
        for each in answer.results
    }
