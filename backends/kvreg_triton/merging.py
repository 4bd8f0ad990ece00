"""Joining the splits of a query row: each left its running maximum (base 2), its sum and its rows.

The splits are taken AT_ONCE side by side, always in the same order: a chain of single loads would cost 132 memory
latencies for one sequence of 131072 tokens on an H200. Empty splits have a sum of exactly 0 and rows that nobody
wrote.
"""

import triton
import triton.language as tl

AT_ONCE = tl.constexpr(16)


@triton.jit
def highest(partial_lse, part, splits):
    """Return the largest maximum of splits `part` to `part + splits`; 0 where no split saw a key."""
    top = -float("inf")
    for first in range(0, splits, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        tops = tl.load(partial_lse + (part + split) * 2, mask=split < splits, other=-float("inf"))
        top = tl.maximum(top, tl.max(tops, 0))
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def split_weights(partial_lse, part, first, splits, base):
    """Return (weight, sum, whether its rows are there) of AT_ONCE splits from `first`, each (AT_ONCE,)."""
    split = first + tl.arange(0, AT_ONCE)
    inside = split < splits
    top = tl.load(partial_lse + (part + split) * 2, mask=inside, other=-float("inf"))
    mass = tl.load(partial_lse + (part + split) * 2 + 1, mask=inside, other=0.0)
    # NaN is not 0: what went wrong in a split stays visible.
    return tl.exp2(top - base), mass, mass != 0.0
