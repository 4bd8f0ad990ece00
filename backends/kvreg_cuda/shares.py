"""Equal shares of a batch of unlike lengths: every program reads as many tiles, of however many sequences.

Rows stand one behind the other, each as many units long as its context has tiles, and a few more for what a program
does before its first tile. Programs take equal parts of that line, whatever the lengths are when the kernel runs: a
captured graph stays balanced as its sequences grow. Where row r begins, and in which share, follows from the lengths
alone, so that the join of the parts needs no message from the attention.
"""

import triton
import triton.language as tl

MOST_ROWS = 1024
"""Rows of a batch that is shared so: each program adds up all lengths, 32 a thread."""
HALVINGS = tl.constexpr(11)
"""Of MOST_ROWS, and one."""
STARTED = tl.constexpr(128)
"""Tokens that other programs read while one begins a row: 4 us in the clocks of docs/int4-decode.md, 2 us a tile."""


@triton.jit
def units_of_start(TILE: tl.constexpr, START: tl.constexpr = STARTED):
    """Return how many units the start of a row counts."""
    return START // TILE


@triton.jit
def units_of(
    cu_q, seq_lens, tokens, n_seqs, TILE: tl.constexpr, MANY: tl.constexpr, START: tl.constexpr = STARTED
):  # fmt: skip
    """Return how many units each row is long, and its context's tiles: (MANY,) int32, 0 for rows without keys.

    MANY: a power of two, at most MOST_ROWS, and at least the sequences.
    """
    row = tl.arange(0, MANY)
    seq = tl.zeros([MANY], tl.int32)
    # By halving, like below. No loop: Triton 3.9 forgets all alignment of what follows from a vector that a loop hands
    # on, and loads single bytes then.
    for half in tl.static_range(1, HALVINGS):
        if MANY >> half > 0:
            later = seq + (MANY >> half)
            start = tl.load(cu_q + later, mask=later < n_seqs, other=2147483647)
            seq = tl.where(start <= row, later, seq)
    # Rows behind the last sequence are padding of a captured graph.
    mine = (row < tokens) & (tl.load(cu_q + seq + 1) > row)
    tiles = tl.cdiv(tl.load(seq_lens + seq, mask=mine, other=0), TILE)
    return tl.where(tiles > 0, tiles + units_of_start(TILE, START), 0), tiles


@triton.jit
def row_at(units, at, MANY: tl.constexpr):
    """Return the row that holds unit `at`, and the units of all rows before it; of a unit behind all, the last row."""
    each = tl.arange(0, MANY)
    row = tl.full([], 0, tl.int32)
    before = tl.full([], 0, tl.int32)
    for half in tl.static_range(1, HALVINGS):
        if MANY >> half > 0:
            units_before = tl.sum(tl.where(each < row + (MANY >> half), units, 0), 0)
            if units_before <= at:
                row += MANY >> half
                before = units_before
    return row, before


@triton.jit
def parts_of(
    cu_q, seq_lens, tokens, n_seqs, programs, row,
    TILE: tl.constexpr, MANY: tl.constexpr, START: tl.constexpr = STARTED,
):  # fmt: skip
    """Return the first share that holds keys of a row, and how many do."""
    units, tiles = units_of(cu_q, seq_lens, tokens, n_seqs, TILE, MANY, START)
    each = tl.arange(0, MANY)
    share = tl.maximum(tl.cdiv(tl.sum(units, 0), programs), 1)
    begin = tl.sum(tl.where(each < row, units, 0), 0) + units_of_start(TILE, START)
    mine = tl.sum(tl.where(each == row, tiles, 0), 0)
    first = begin // share
    return first, tl.where(mine > 0, (begin + mine - 1) // share - first + 1, 0)
