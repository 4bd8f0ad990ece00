"""Row scales as powers of two: what weighs a value can then ride in the exponent of a softmax.

A weight w[t] * s_v[t] must stay within fp16 whatever the scales are. With s_v = m * 2**e the sum e + score has its own
running maximum, so that w[t] = exp2(score + e - maximum) is at most 1 and w[t] * m[t] below 2.
"""

import triton
import triton.language as tl

EXPONENT = tl.constexpr(0x7F800000)
"""Bits of a float32 that hold its exponent."""
LEAST = tl.constexpr(27 << 23)
"""The same of 2**-100: smaller scales, and 0, count as multiples of it, so that a token's mass stays a float32."""
INVERSE = tl.constexpr(254 << 23)
"""These less the bits of a power of two are the bits of its inverse."""


@triton.jit
def exponents(scales):
    """Return (e, 2**-e) as float32 of float32 scales; of what is not finite a scale times 2**-e is not finite either.

    Integers stand for log2 and 1 / x, which would take 8 and 10 instructions each on an NVIDIA card.
    """
    bits = tl.maximum(scales.to(tl.int32, bitcast=True) & EXPONENT, LEAST)
    return ((bits >> 23) - 127).to(tl.float32), (-(bits - INVERSE)).to(tl.float32, bitcast=True)
