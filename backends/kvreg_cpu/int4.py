"""Rows as unsigned nibbles: one float32 scale a row, the zero point in the scale's four lowest mantissa bits.

s = max((max - min) / 15, 1e-6)             max and min over the row and 0, so that no row saturates
z = clamp(round(-min / s), 0, 15)
code[c] = clamp(round(x[c] * (1 / s) + z), 0, 15)    round half away from zero
byte[j] = code[2j] | code[2j + 1] << 4
stored scale = bits(s) & ~15 | z;  x'[c] = (code[c] - z) * (s with those four bits cleared)
"""

from __future__ import annotations

import torch

LEAST_SCALE = 1e-6
MOST = 15
"""Largest code, and the mask of the zero point's bits."""


def _code(x: torch.Tensor) -> torch.Tensor:
    """Return x rounded half away from zero and clamped to a code, as int32; what is no number becomes 0.

    Negative values end at 0, so that rounding up from the half is all that half away from zero asks for.
    """
    return torch.floor(x + 0.5).clamp(0, MOST).nan_to_num(nan=0.0).to(torch.int32)


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (bytes, scales) of `rows` (..., head_size) float32: (..., head_size / 2) uint8 and (...) float32.

    A row with an infinity or NaN gets a scale that is no finite number, so that it reads as such and not as noise.
    """
    high, low = rows.amax(-1).clamp(min=0.0), rows.amin(-1).clamp(max=0.0)
    scale = ((high - low) / MOST).clamp(min=LEAST_SCALE)
    zero = _code(-low / scale)
    codes = _code(rows * (1.0 / scale)[..., None] + zero[..., None])
    stored = (scale.view(torch.int32) & ~MOST) | zero
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), stored.view(torch.float32)


def dequantize(packed: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Return the float32 rows that `packed` (..., head_size / 2) and `stored` scales (...) stand for."""
    bits = stored.view(torch.int32)
    zero, scale = bits & MOST, (bits & ~MOST).view(torch.float32)
    codes = torch.stack((packed & MOST, packed >> 4), dim=-1).flatten(-2).to(torch.int32)
    return (codes - zero[..., None]).to(torch.float32) * scale[..., None]
