"""The forward rotation of kvreg_triton.rotation with its first four levels on matrix units, as exact.

16 neighbouring channels meet the 16 x 16 Hadamard matrix in one product of bf16 or fp16 with float32 sums: the model's
values and +-1 are exact operands, so that nothing but the sums is rounded. The levels that are left add and subtract
whole groups of 16, which one thread holds of its row: no value changes threads, where the butterfly sends every one
through shared memory at each level.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import INTERPRETED
from kvreg_triton.rotation import SIGN_WORDS

SIDE = tl.constexpr(16)
"""Channels of a product: the depth of a matrix instruction of 16-bit values."""
FIRST_LEVELS = tl.constexpr(4)
EXACT_TYPES = tl.constexpr(not INTERPRETED)
"""The interpreter holds bf16 as integers and multiplies those: there products are of float32."""


@triton.jit
def first_levels(BLOCK: tl.constexpr):
    """Return H of min(BLOCK, 16) channels, repeated along the diagonal where that is 8: (16, 16) float32."""
    i = tl.arange(0, SIDE)[:, None]
    j = tl.arange(0, SIDE)[None, :]
    both = i & j & (BLOCK - 1)
    both = both ^ (both >> 2)
    odd = (both ^ (both >> 1)) & 1
    return tl.where((i ^ j) < BLOCK, 1.0 - 2.0 * odd.to(tl.float32), 0.0)


@triton.jit
def lines(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return which row each line of `rotated` is of: first all rows' first 16 channels, then their next, and so on.

    Pointers are computed from this, not spread over lines afterwards: the compiler would not see their alignment.
    """
    return tl.arange(0, WIDTH // SIDE * ROWS) % ROWS


@triton.jit
def turned(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Change the signs of x (lines, 16) by D, as bits."""
    GROUPS: tl.constexpr = WIDTH // SIDE
    group = tl.arange(0, GROUPS * ROWS) // ROWS
    word = tl.full([GROUPS * ROWS], SIGN_WORDS[0], tl.int32)
    for j in tl.static_range(1, (BLOCK + 15) // 16):
        word = tl.where(group % (BLOCK // 16) == j, SIGN_WORDS[j], word)
    minus = (word[:, None] << (15 - tl.arange(0, SIDE) % BLOCK)[None, :]) & 0x8000
    if EXACT_TYPES:
        return (x.to(tl.int16, bitcast=True) ^ minus.to(tl.int16)).to(x.dtype, bitcast=True)
    return tl.where(minus != 0, -x, x)


@triton.jit
def load_lines(rows, ok, HEAD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows of HEAD bf16, fp16 or float32 as (WIDTH / 16 * ROWS, 16), 0 where a row is not `ok`.

    `rows`: pointers of `lines`.
    """
    channel = (tl.arange(0, WIDTH // SIDE * ROWS) // ROWS * SIDE)[:, None] + tl.arange(0, SIDE)[None, :]
    return tl.load(rows[:, None] + channel, mask=ok[:, None] & (channel < HEAD), other=0.0)


@triton.jit
def rotated(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Return H (D x) of rows that `load_lines` brought, (ROWS, WIDTH) float32."""
    GROUPS: tl.constexpr = WIDTH // SIDE
    x = turned(x, ROWS, WIDTH, BLOCK)
    if EXACT_TYPES:
        y = tl.dot(x, first_levels(BLOCK).to(x.dtype))
    else:
        y = tl.dot(x.to(tl.float32), first_levels(BLOCK), input_precision="ieee")
    y = tl.reshape(y, [GROUPS, ROWS, SIDE])
    for _ in tl.static_range(LEVELS - FIRST_LEVELS):
        # The butterfly of kvreg_triton.rotation over whole groups: halves of a block are paired, each pair moves down.
        a, b = tl.split(
            tl.permute(tl.reshape(y, [WIDTH // BLOCK, 2, BLOCK // SIDE // 2, ROWS, SIDE]), (0, 2, 3, 4, 1))
        )
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 4, 2, 3)), [GROUPS, ROWS, SIDE])
    return tl.reshape(tl.permute(y, (1, 0, 2)), [ROWS, WIDTH])
