"""Storing K and V rows in plain torch; see kvreg.runtime.launchers.WriteLauncher for what a launcher is handed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from kvreg.runtime.launchers import CacheView
from kvreg_cpu import eight_bit, int4
from kvreg_cpu.rotation import rotate


def _steps(slots: torch.Tensor, page: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield (input rows, pages, slots in the page) of at most `rows` rows that are stored; negative slots are not."""
    kept = (slots >= 0).nonzero().squeeze(-1)
    for taken in kept.split(rows):
        slot = slots[taken].long()
        yield taken, slot // page, slot % page


@torch.no_grad()
def write_none(
    cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Store rows as they are."""
    for taken, page, slot in _steps(slots, cache.page, config["rows"]):
        cache.k[page, slot] = k[taken]
        cache.v[page, slot] = v[taken]


@torch.no_grad()
def write_int4(
    cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Rotate rows in float32, quantize them from there and store nibbles and scales."""
    for taken, page, slot in _steps(slots, cache.page, config["rows"]):
        for rows, values, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            values[page, slot], scales[page, slot] = int4.quantize(rotate(rows[taken].float()))


@torch.no_grad()
def write_int8(
    cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Store int8 codes and a scale a row."""
    for taken, page, slot in _steps(slots, cache.page, config["rows"]):
        for rows, values, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            values[page, slot], scales[page, slot] = eight_bit.quantize_int8(rows[taken].float())


@torch.no_grad()
def write_fp8h(
    cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Store fp8 codes, in the type that the cache has, and a scale a row."""
    for taken, page, slot in _steps(slots, cache.page, config["rows"]):
        for rows, values, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            codes, scales[page, slot] = eight_bit.quantize_fp8(rows[taken].float(), values.dtype)
            values.view(torch.uint8)[page, slot] = codes.view(torch.uint8)  # torch indexes no fp8 tensor


@torch.no_grad()
def write_fp8t(
    cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Store fp8 codes under the scale that all of K, or of V, has."""
    for taken, page, slot in _steps(slots, cache.page, config["rows"]):
        for rows, values, scale in zip((k, v), (cache.k, cache.v), cache.tensor_scales, strict=True):
            codes = eight_bit.quantize_fp8_by(rows[taken].float(), scale, values.dtype)
            values.view(torch.uint8)[page, slot] = codes.view(torch.uint8)
