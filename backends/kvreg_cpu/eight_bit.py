"""Rows of 8-bit values: int8 or fp8 with one float32 scale a row, or fp8 under one scale for the whole tensor.

row scale:     s = max(max |x| / qmax, 1e-6), code[c] = x[c] / s
tensor scale:  code[c] = x[c] / s clamped to +-qmax, so that what does not fit saturates
int8 codes are rounded half away from zero, fp8 codes to the nearest even; x'[c] = code[c] * s
"""

from __future__ import annotations

import torch

LEAST_SCALE = 1e-6
INT8_QMAX = 127.0
FP8_QMAX = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 224.0}
"""Largest magnitude stored in each fp8 type. e4m3fnuz could hold 240; its writers keep half of e4m3fn's range."""


def _scaled(rows: torch.Tensor, qmax: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rows over their scales, scales); a row with an infinity or NaN becomes zeros with a NaN scale."""
    top = rows.abs().amax(-1)
    whole = top.isfinite()
    scales = torch.where(whole, (top / qmax).clamp(min=LEAST_SCALE), torch.nan)
    return torch.where(whole[..., None], rows / scales[..., None], 0.0), scales


def quantize_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes, scales) of `rows` (..., head_size) float32: int8 of the same shape and (...) float32."""
    codes, scales = _scaled(rows, INT8_QMAX)
    return torch.trunc(codes + torch.copysign(torch.tensor(0.5), codes)).to(torch.int8), scales


def quantize_fp8(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes, scales) of `rows` (..., head_size) float32: `dtype` of the same shape and (...) float32."""
    qmax = FP8_QMAX[dtype]
    codes, scales = _scaled(rows, qmax)
    return codes.clamp(-qmax, qmax).to(dtype), scales


def quantize_fp8_by(rows: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the codes of `rows` float32 under one scale, of `dtype`; infinities and NaN become NaN."""
    qmax = FP8_QMAX[dtype]
    return torch.where(rows.isfinite(), (rows / scale).clamp(-qmax, qmax), torch.nan).to(dtype)


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the float32 rows that `codes` (..., head_size) and `scales`, (...) or one, stand for."""
    return codes.float() * (scales[..., None] if scales.dim() else scales)
