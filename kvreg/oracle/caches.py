"""Reading and filling a cache as the format's definition says, through the strides of its views."""

from __future__ import annotations

from typing import Protocol

import torch

from kvreg.core.errors import WrongCache, wrong
from kvreg.core.modes import Mode
from kvreg.oracle.fp8 import decode, encode, format_of
from kvreg.oracle.quantize import (
    pack_codes,
    pack_scale,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    unpack_codes,
    unpack_scale,
)
from kvreg.oracle.rotation import rotate, unrotate

_STORED_AT_ONCE = 1 << 15
"""Rows that `store` holds in fp64 at a time: half a gigabyte at 8 heads of 256."""


class Cache(Protocol):
    """What the oracle needs of a cache; `kvreg.runtime.launchers.CacheView` has it.

    `k`, `v`: (pages, page, kv_heads, row), int8, float8_e4m3fn or float8_e4m3fnuz, the model's dtype, or uint8 where
    two int4 codes are a byte; `k_scale`, `v_scale`: (pages, page, kv_heads) float32 or None.
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

    @property
    def tensor_scales(self) -> torch.Tensor | None:
        """(2,) float32, the scales of all K and of all V in fp8_per_tensor; None in every other mode."""


_STORED = {
    Mode.NONE: (torch.bfloat16, torch.float16, torch.float32),
    Mode.INT8_PER_TOKEN_HEAD: (torch.int8,),
    Mode.INT4_PER_TOKEN_HEAD: (torch.uint8,),
    Mode.FP8_PER_TOKEN_HEAD: (torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    Mode.FP8_PER_TENSOR: (torch.float8_e4m3fn, torch.float8_e4m3fnuz),
}


def _known(cache: Cache) -> None:
    due = _STORED[cache.mode]
    if cache.k.dtype not in due or cache.v.dtype != cache.k.dtype:
        raise WrongCache(
            wrong(
                f"cache of mode {cache.mode}",
                required=f"K and V rows of one dtype of {', '.join(map(str, due))}",
                found=f"{cache.k.dtype} and {cache.v.dtype}",
                remedy="view the cache's bytes as its format says",
            )
        )


def tensor_scale(cache: Cache, side: str) -> torch.Tensor:
    """Return K's or V's scale of a fp8_per_tensor cache, () float64; raises WrongCache for a cache without them."""
    if cache.tensor_scales is None:
        raise WrongCache(
            wrong(
                f"cache of mode {cache.mode}",
                required="tensor_scales, (2,) float32",
                found="none",
                remedy="make the cache with its scales of K and V",
            )
        )
    return cache.tensor_scales[0 if side == "k" else 1].to(torch.float64)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Return a view of 8-bit rows as uint8, which every indexing operation takes."""
    return rows.view(torch.uint8)


def stored_rows(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return what is stored, decoded but still rotated where the mode rotates.

    `side` is "k" or "v"; `page`, `slot`: int64 of one shape (...). Returns (..., kv_heads, head_size) float64.
    Raises WrongCache where the rows' dtype is not the mode's.
    """
    _known(cache)
    data, scales = (cache.k, cache.k_scale) if side == "k" else (cache.v, cache.v_scale)
    if cache.mode is Mode.NONE:
        return data[page, slot].to(torch.float64)
    if cache.mode is Mode.FP8_PER_TENSOR:
        return decode(as_bytes(data)[page, slot], format_of(data.dtype)).mul_(tensor_scale(cache, side))
    assert scales is not None  # a cache of these modes without scales cannot be made
    if cache.mode is Mode.INT4_PER_TOKEN_HEAD:
        scale, zero = unpack_scale(scales[page, slot])
        codes = unpack_codes(data[page, slot]).to(torch.float64)
        return codes.sub_(zero[..., None]).mul_(scale[..., None])
    if cache.mode is Mode.INT8_PER_TOKEN_HEAD:
        codes = data[page, slot].to(torch.float64)
    else:
        codes = decode(as_bytes(data)[page, slot], format_of(data.dtype))
    return codes.mul_(scales[page, slot].to(torch.float64)[..., None])


def model_rows(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return dequantized rows in the model's domain: (..., kv_heads, head_size) float64; see `stored_rows`."""
    rows = stored_rows(cache, side, page, slot)
    return unrotate(rows, cache.head_size) if cache.mode is Mode.INT4_PER_TOKEN_HEAD else rows


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
        for side, source, data, scales in (("k", k, cache.k, cache.k_scale), ("v", v, cache.v, cache.v_scale)):
            rows = source[kept]
            if cache.mode is Mode.NONE:
                data[page, slot] = rows.to(data.dtype)
                continue
            if cache.mode is Mode.FP8_PER_TENSOR:
                scaled = rows.to(torch.float64) / tensor_scale(cache, side)
                as_bytes(data)[page, slot] = encode(scaled, format_of(data.dtype))
                continue
            codes, scale = _quantized(cache, rows)
            as_bytes(data)[page, slot] = codes
            assert scales is not None
            scales[page, slot] = scale


def _quantized(cache: Cache, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (bytes (..., row) uint8, stored scales (...) float32) of rows in a mode that has scales a row."""
    if cache.mode is Mode.INT4_PER_TOKEN_HEAD:
        codes, scale, zero = quantize_int4(rotate(rows, cache.head_size))
        return pack_codes(codes), pack_scale(scale, zero)
    if cache.mode is Mode.INT8_PER_TOKEN_HEAD:
        codes, scale = quantize_int8(rows)
    else:
        codes, scale = quantize_fp8(rows, format_of(cache.k.dtype))
    return as_bytes(codes), scale.to(torch.float32)
