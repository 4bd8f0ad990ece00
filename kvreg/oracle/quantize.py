"""The row formats by their definitions, in fp64.

int4: a row r has s = max((max - min) / 15, 1e-6) with 0 counted into the range, z = clamp(round(-min / s), 0, 15)
and codes q = clamp(round(r / s + z), 0, 15), rounding half away from zero. Stored: q[2j] in the low nibble of byte
j, q[2j+1] in the high one; s as float32 with its 4 lowest mantissa bits replaced by z. A reader has (q - z) * s', s'
being the stored bits with those 4 cleared.

int8: s = max(max |r| / 127, 1e-6) as float32, q = clamp(round(r / s), -128, 127), halves away from zero.
fp8 with a scale a row: s = max(max |r| / qmax, 1e-6), q = r / s in e4m3, see `kvreg.oracle.fp8`; a reader has q s.
fp8 with a scale a tensor: q = r / s in e4m3 with a given s.
A row with a value that is not finite gets the scale nan, where rows have scales; where they have none that value does.
"""

from __future__ import annotations

import torch

from kvreg.oracle.fp8 import Fp8, encode

LEVELS = 15
"""Largest int4 code."""
INT8_MAX = 127.0
"""Code of a row's largest magnitude in int8."""
LEAST_SCALE = 1e-6
"""Rows of zeros get this scale, so that no reader divides by zero (vLLM's constant)."""


def ideal_scale(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scale, exact zero point) of each row: float64 of shape rows.shape[:-1]; the point is not yet rounded."""
    r = rows.to(torch.float64)
    low, high = r.amin(-1).clamp(max=0.0), r.amax(-1).clamp(min=0.0)
    scale = ((high - low) / LEVELS).clamp(min=LEAST_SCALE)
    return scale, (-low / scale).clamp(0.0, float(LEVELS))


def round_half_away(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest integer, halves away from zero."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def quantize_int4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize rows as they are, without rotating them.

    `rows`: (..., n) of any float dtype. Returns (codes uint8 (..., n) of 0 to 15, scale float64 (...), zero point
    int64 (...)).
    """
    scale, point = ideal_scale(rows)
    zero = round_half_away(point)
    codes = round_half_away(rows.to(torch.float64) / scale[..., None] + zero[..., None])
    return codes.clamp(0, LEVELS).to(torch.uint8), scale, zero.to(torch.int64)


def symmetric_scale(rows: torch.Tensor, qmax: float) -> torch.Tensor:
    """Return the scale that maps each row's largest magnitude to `qmax`: float64 of shape rows.shape[:-1].

    It is nan for a row with a value that is not finite.
    """
    top = rows.to(torch.float64).abs().amax(-1)
    scale = (top / qmax).clamp(min=LEAST_SCALE)
    return torch.where(top.isfinite(), scale, float("nan"))


def quantize_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows (..., n) of any float dtype; returns (codes int8 (..., n), scale float64 (...))."""
    scale = symmetric_scale(rows, INT8_MAX)
    codes = round_half_away(rows.to(torch.float64) / scale[..., None]).clamp(-INT8_MAX - 1, INT8_MAX)
    return codes.nan_to_num(nan=0.0).to(torch.int8), scale


def quantize_fp8(rows: torch.Tensor, fp8: Fp8) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows (..., n) with a scale a row; returns (codes uint8 (..., n), scale float64 (...))."""
    scale = symmetric_scale(rows, fp8.qmax)
    return encode(rows.to(torch.float64) / scale[..., None], fp8), scale


def pack_scale(scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return the stored float32: the bits of `scale` with `zero` in the 4 lowest."""
    bits = scale.to(torch.float32).view(torch.int32)
    return ((bits & ~0xF) | zero.to(torch.int32)).view(torch.float32)


def unpack_scale(stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scale float64, zero point int32) of stored float32 scales."""
    bits = stored.contiguous().view(torch.int32)
    return (bits & ~0xF).view(torch.float32).to(torch.float64), bits & 0xF


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Return the bytes of codes: (..., n) uint8 of 0 to 15 -> (..., n / 2) uint8, even channels low."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_codes(packed: torch.Tensor) -> torch.Tensor:
    """Return the codes of bytes: (..., n / 2) uint8 -> (..., n) uint8 of 0 to 15."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
