"""Reading and filling a cache as the format's definition says, through the strides of its views."""

from __future__ import annotations

from typing import Protocol

import torch

from kvreg.core.errors import WrongCache, wrong
from kvreg.core.modes import Mode
from kvreg.oracle.quantize import pack_codes, pack_scale, quantize_int4, unpack_codes, unpack_scale
from kvreg.oracle.rotation import rotate, unrotate

_STORED_AT_ONCE = 1 << 15
"""Rows that `store` holds in fp64 at a time: half a gigabyte at 8 heads of 256."""


class Cache(Protocol):
    """What the oracle needs of a cache; `kvreg.runtime.launchers.CacheView` has it.

    `k`, `v`: (pages, page, kv_heads, row); `k_scale`, `v_scale`: (pages, page, kv_heads) float32 or None.
    """

    @property
    def mode(self) -> Mode:
        """How rows are stored."""

    @property
    def head_size(self) -> int:
        """Channels of one row."""

    @property
    def kv_heads(self) -> int:
        """KV heads of one token."""

    @property
    def page(self) -> int:
        """Token slots of one page."""

    @property
    def k(self) -> torch.Tensor:
        """Stored K rows."""

    @property
    def v(self) -> torch.Tensor:
        """Stored V rows."""

    @property
    def k_scale(self) -> torch.Tensor | None:
        """Stored K scales."""

    @property
    def v_scale(self) -> torch.Tensor | None:
        """Stored V scales."""


def _known(cache: Cache) -> None:
    if cache.mode not in (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD):
        raise WrongCache(
            wrong(
                "oracle",
                required="mode none or int4_per_token_head",
                found=cache.mode,
                remedy="judge this mode with a kvreg release that has a reference for it",
            )
        )


def stored_rows(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return what is stored, decoded but still rotated where the mode rotates.

    `side` is "k" or "v"; `page`, `slot`: int64 of one shape (...). Returns (..., kv_heads, head_size) float64.
    Raises WrongCache for a mode without a reference.
    """
    _known(cache)
    data, scales = (cache.k, cache.k_scale) if side == "k" else (cache.v, cache.v_scale)
    values = data[page, slot]
    if cache.mode is Mode.NONE:
        return values.to(torch.float64)
    assert scales is not None  # a cache of this mode without scales cannot be made
    scale, zero = unpack_scale(scales[page, slot])
    codes = unpack_codes(values).to(torch.float64)
    return codes.sub_(zero[..., None]).mul_(scale[..., None])


def model_rows(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return dequantized rows in the model's domain: (..., kv_heads, head_size) float64; see `stored_rows`."""
    rows = stored_rows(cache, side, page, slot)
    return rows if cache.mode is Mode.NONE else unrotate(rows, cache.head_size)


def dequantize(cache: Cache, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (K, V) of slots in the model's domain, each (..., kv_heads, head_size) float64.

    `slots`: integers (...), slot = page index * page + offset; none may be negative.
    """
    index = slots.to(torch.int64)
    page, slot = index // cache.page, index % cache.page
    return model_rows(cache, "k", page, slot), model_rows(cache, "v", page, slot)


def store(cache: Cache, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Write rows as the format defines them, in fp64: an ideal writer for tests of readers.

    `k`, `v`: (rows, kv_heads, head_size); `slots`: (at most rows,) integers; negative ones are skipped.
    """
    _known(cache)
    for kept in torch.nonzero(slots >= 0).squeeze(1).split(_STORED_AT_ONCE):
        index = slots[kept].to(torch.int64)
        page, slot = index // cache.page, index % cache.page
        for source, data, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            rows = source[kept]
            if cache.mode is Mode.NONE:
                data[page, slot] = rows.to(data.dtype)
                continue
            assert scales is not None
            codes, scale, zero = quantize_int4(rotate(rows, cache.head_size))
            data[page, slot] = pack_codes(codes)
            scales[page, slot] = pack_scale(scale, zero)
