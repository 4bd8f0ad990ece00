"""Integer operands of int4 decode: values in two parts, in the rows and the order that m16n8k32 wants.

A value that is scaled to at most 127 is h + l / 254 with integers h and l within +-127. A matrix instruction has 16
rows and a group of query heads often fills no more than 8: rows 0 to 7 hold h, rows 8 to 15 hold l, which would be
padding otherwise. Of 16 query rows l fills an instruction of its own. Rows r and r + ROWS of a product lie in the same
thread, so `folded` joins them in registers. Keys are taken in an order (`key_order`) in which a thread's scores are,
after one permutation that moves nothing, the weights that it must hold for the second product.

Groups that leave rows free fill them again: row r is head r % MEMBERS and has subset r // MEMBERS of a tile's keys,
a softmax of its own (`own`, `among_all`). Every row of a product has all keys anyway; what follows it, from the scale
of a score to the rounding of a weight, is then done once a key instead of once a row.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import INTERPRETED

PACKED = tl.constexpr(not INTERPRETED)
"""Four bytes at a time by inline PTX: LLVM masks the bytes of a word one by one, 500 more instructions a tile."""
LEVELS_OF_CODE = tl.constexpr(127.0)
"""Largest magnitude of an int8 that has a negative."""
FINER = tl.constexpr(254)
"""Residues of at most 1/2 fill +-127 when scaled by this."""
ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2**23: a float32 of at most 2**22 plus this has its nearest integer in the low mantissa bits."""


@triton.jit
def nibbles(codes):
    """Return the even (low nibble) and odd channels of packed bytes, int8 of 0 to 15."""
    if PACKED:
        low = tl.inline_asm_elementwise(
            "and.b32 $0, $1, 0x0F0F0F0F;", "=r,r", [codes], dtype=tl.int8, is_pure=True, pack=4
        )
        high = tl.inline_asm_elementwise(
            "{ .reg .b32 t; shr.b32 t, $1, 4; and.b32 $0, t, 0x0F0F0F0F; }",
            "=r,r", [codes], dtype=tl.int8, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low = (codes & 15).to(tl.int8, bitcast=True)
        high = (codes >> 4).to(tl.int8, bitcast=True)
    return low, high


@triton.jit
def larger_or_nan(a, b):
    """Return the larger of two, NaN where one is: what is not finite must stay visible when it is rounded away."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest_of(x):
    """Return the largest of each row of (rows, n), NaN where one is NaN."""
    return tl.reduce(x, 1, larger_or_nan)


@triton.jit
def quantized(x, factor):
    """Split x * factor, within +-127, into h + l / 254. Returns h and l as int8; what is not finite gives any."""
    high = tl.fma(x, factor, ROUNDER)
    low = tl.fma(tl.fma(x, factor, ROUNDER - high), FINER, ROUNDER)
    return high.to(tl.int32, bitcast=True).to(tl.int8), low.to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def sum_with(high, low, z, WORDS: tl.constexpr):
    """Return the sum of (254 h + l) z over each row of (rows, n) int8, int32; z is (rows, n) int32, 0 to 15.

    WORDS: whether every thread holds whole words of them, so that four meet at once.
    """
    if WORDS and PACKED:
        sums = tl.inline_asm_elementwise(
            "{ .reg .s32 t; dp4a.s32.s32 t, $4, $6, 0; mul.lo.s32 t, t, 254; dp4a.s32.s32 $0, $5, $6, t; "
            "mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }",
            "=r,=r,=r,=r,r,r,r", [high, low, z.to(tl.int8)], dtype=tl.int32, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        sums = (high.to(tl.int32) * FINER + low.to(tl.int32)) * z
    return tl.sum(sums, 1)


@triton.jit
def stacked(high, low, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Put two (ROWS, WIDTH) below each other: rows r and r + ROWS."""
    return tl.reshape(tl.permute(tl.join(high, low), (2, 0, 1)), [2 * ROWS, WIDTH])


@triton.jit
def stacked_by_words(high, low, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Do what `stacked` does for an operand that goes through shared memory.

    A thread's neighbouring values stay neighbours of a row: else they are read back byte by byte, in the loop.
    """
    first = (tl.arange(0, 2) == 0)[:, None, None]
    return tl.reshape(tl.where(first, high[None, :, :], low[None, :, :]), [2 * ROWS, WIDTH])


@triton.jit
def folded(product, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return 254 times row r plus row r + ROWS of a (2 ROWS, WIDTH) int32, as (ROWS, WIDTH) int32."""
    halves = tl.reshape(product, [2, ROWS, WIDTH])
    factor = tl.where(tl.arange(0, 2) == 0, FINER, 1)
    return tl.sum(halves * factor[:, None, None], 0)


@triton.jit
def key_order(TILE: tl.constexpr):
    """Return which token of a tile each key column is, see `as_operand`."""
    column = tl.arange(0, TILE)
    return column // 32 * 32 + column % 8 // 2 * 8 + column % 32 // 8 * 2 + column % 2


@triton.jit
def as_operand(weights, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Bring (2 ROWS, TILE) weights from `key_order` into the order of the tokens.

    A thread of m16n8 holds columns 2q, 2q + 1 of each block of 8 keys; as the left operand it must hold 8 neighbours.
    """
    parts = tl.reshape(weights, [2 * ROWS, TILE // 32, 4, 4, 2])
    return tl.reshape(tl.permute(parts, (0, 1, 3, 2, 4)), [2 * ROWS, TILE])


@triton.jit
def quantized_query(y, scale, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Split rotated rows (ROWS, WIDTH) float32, times the sign of `scale`, into integers.

    Returns even and odd channels (2 ROWS, WIDTH / 2) int8, the int32 sum of a row's 254 h + l, and what one is worth
    times the magnitude of `scale`.
    """
    largest = largest_of(tl.abs(y))
    largest = tl.where(largest == 0.0, 1.0, largest)
    factor = tl.where(scale < 0.0, -LEVELS_OF_CODE, LEVELS_OF_CODE) / largest
    even, odd = tl.split(tl.reshape(y, [ROWS, WIDTH // 2, 2]))
    even_high, even_low = quantized(even, factor[:, None])
    odd_high, odd_low = quantized(odd, factor[:, None])
    high = even_high.to(tl.int32) + odd_high.to(tl.int32)
    low = even_low.to(tl.int32) + odd_low.to(tl.int32)
    total = tl.sum(high * FINER + low, 1)
    even = stacked_by_words(even_high, even_low, ROWS, WIDTH // 2)
    odd = stacked_by_words(odd_high, odd_low, ROWS, WIDTH // 2)
    return even, odd, total, largest * (tl.abs(scale) / (LEVELS_OF_CODE * FINER))


@triton.jit
def of_subset(ROWS: tl.constexpr, SUBSETS: tl.constexpr):
    """Return which subset of a tile's keys each row takes: (ROWS, SUBSETS), true once a row."""
    return (tl.arange(0, ROWS) // (ROWS // SUBSETS))[:, None] == tl.arange(0, SUBSETS)[None, :]


@triton.jit
def own(product, ROWS: tl.constexpr, SUBSETS: tl.constexpr, TILE: tl.constexpr):
    """Return what a row of (ROWS, TILE) int32 has of its subset's keys, (ROWS, TILE / SUBSETS), in its thread."""
    parts = tl.reshape(product, [ROWS, SUBSETS, TILE // SUBSETS])
    return tl.sum(tl.where(of_subset(ROWS, SUBSETS)[:, :, None], parts, 0), 1)


@triton.jit
def own_scales(x, ROWS: tl.constexpr, SUBSETS: tl.constexpr, TILE: tl.constexpr):
    """Spread (TILE,) over rows, each of which gets its subset's: (ROWS, TILE / SUBSETS)."""
    parts = tl.reshape(x, [SUBSETS, 1, TILE // SUBSETS])
    spread = tl.broadcast_to(parts, [SUBSETS, ROWS // SUBSETS, TILE // SUBSETS])
    return tl.reshape(spread, [ROWS, TILE // SUBSETS])


@triton.jit
def among_all(x, ROWS: tl.constexpr, SUBSETS: tl.constexpr, TILE: tl.constexpr):
    """Put a row's own (ROWS, TILE / SUBSETS) int8 among zeros: (ROWS, TILE)."""
    shape: tl.constexpr = [ROWS, SUBSETS, TILE // SUBSETS]
    spread = tl.broadcast_to(x[:, None, :], shape)
    mask = tl.broadcast_to(tl.where(of_subset(ROWS, SUBSETS), -1, 0).to(tl.int8)[:, :, None], shape)
    if PACKED:
        kept = tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;", "=r,r,r", [spread, mask], dtype=tl.int8, is_pure=True, pack=4
        )
    else:
        kept = spread & mask
    return tl.reshape(kept, [ROWS, TILE])


@triton.jit
def of_each_key(ROWS: tl.constexpr, SUBSETS: tl.constexpr, TILE: tl.constexpr):
    """Return which keys of a tile are of a row's subset, (ROWS, TILE)."""
    shape: tl.constexpr = [ROWS, SUBSETS, TILE // SUBSETS]
    return tl.reshape(tl.broadcast_to(of_subset(ROWS, SUBSETS)[:, :, None], shape), [ROWS, TILE])
