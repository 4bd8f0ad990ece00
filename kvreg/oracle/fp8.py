"""The two 8-bit floating-point formats by their definition, in fp64; no conversion of torch's is asked.

A code is sign (1 bit) | exponent e (4) | mantissa m (3), of magnitude (8 + m) 2^(e - bias - 3), or m 2^(1 - bias - 3)
where e = 0:

    e4m3fn     bias 7, 0x7F and 0xFF are nan, largest 448 (0x7E), which is what writers clamp to
    e4m3fnuz   bias 8, 0x80 is nan and there is no -0, largest 240 (0x7F); writers clamp to 224 (0x7E)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch

from kvreg.core import formats

MANTISSA_BITS = 3


@dataclass(frozen=True, slots=True)
class Fp8:
    """One format."""

    name: str
    bias: int
    nan: int
    """The code that is stored for a value that is not finite."""
    qmax: float
    """Largest magnitude that a writer stores."""


E4M3FN = Fp8(formats.E4M3FN, 7, 0x7F, formats.QMAX[formats.E4M3FN])
E4M3FNUZ = Fp8(formats.E4M3FNUZ, 8, 0x80, formats.QMAX[formats.E4M3FNUZ])
_BY_DTYPE = {torch.float8_e4m3fn: E4M3FN, torch.float8_e4m3fnuz: E4M3FNUZ}


def format_of(dtype: torch.dtype) -> Fp8:
    """Return the format of a cache's torch dtype; raises KeyError for one that is no fp8 of a cache."""
    return _BY_DTYPE[dtype]


def _magnitude(fp8: Fp8, code: int) -> float:
    exponent, mantissa = code >> MANTISSA_BITS, code & 7
    if exponent == 0:
        return mantissa * 2.0 ** (1 - fp8.bias - MANTISSA_BITS)
    return (8 + mantissa) * 2.0 ** (exponent - fp8.bias - MANTISSA_BITS)


@cache
def _table(fp8: Fp8, device: torch.device) -> torch.Tensor:
    """Return the (256,) float64 values of all codes."""
    values = [_magnitude(fp8, code & 0x7F) * (-1 if code & 0x80 else 1) for code in range(256)]
    for code in (0x80,) if fp8 == E4M3FNUZ else (0x7F, 0xFF):
        values[code] = float("nan")
    return torch.tensor(values, dtype=torch.float64, device=device)


@cache
def _midpoints(fp8: Fp8, device: torch.device) -> torch.Tensor:
    """Return the float64 midpoints between neighbouring magnitudes up to qmax, exact and in the order of codes."""
    magnitudes = [_magnitude(fp8, code) for code in range(0x80)]
    kept = [x for x in magnitudes if x <= fp8.qmax]
    return torch.tensor([(a + b) / 2 for a, b in pairwise(kept)], dtype=torch.float64, device=device)


def decode(codes: torch.Tensor, fp8: Fp8) -> torch.Tensor:
    """Return the float64 values of uint8 codes of any shape."""
    return _table(fp8, codes.device)[codes.to(torch.int64)]


def encode(x: torch.Tensor, fp8: Fp8) -> torch.Tensor:
    """Return the uint8 codes of values: clamped to +-qmax, rounded to the nearest, halves to the even code.

    `x`: any float dtype and shape. A value that is not finite becomes nan.
    """
    values = x.to(torch.float64)
    size = values.abs().clamp(max=fp8.qmax)
    middle = _midpoints(fp8, x.device)
    code = torch.searchsorted(middle, size.contiguous())  # the number of midpoints below `size`: halves went down
    tie = middle[code.clamp(max=len(middle) - 1)] == size
    code += tie & (code % 2 == 1)
    negative = values.signbit() if fp8 == E4M3FN else (values < 0) & (code > 0)
    signed = torch.where(negative, code | 0x80, code)
    return torch.where(values.isfinite(), signed, fp8.nan).to(torch.uint8)


def spacing(x: torch.Tensor, fp8: Fp8) -> torch.Tensor:
    """Return the distance between the neighbours of each value in the format: float64, the shape of `x`."""
    least = 2.0 ** (1 - fp8.bias)  # below the smallest normal value the distance stays the same
    _, exponent = torch.frexp(x.to(torch.float64).abs().clamp(min=least))
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - 1 - MANTISSA_BITS)


def order(codes: torch.Tensor) -> torch.Tensor:
    """Return the place of each uint8 code among the values of a format, int64; neighbours differ by 1."""
    code = codes.to(torch.int64)
    return torch.where(code >= 0x80, -(code & 0x7F), code)
