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
STARTED = tl.constexpr(128)
"""Tokens that other programs read while one begins a row: 4 us in the clocks of docs/int4-decode.md, 2 us a tile."""


@triton.jit
def units_of_start(TILE: tl.constexpr):
    """Return how many units the start of a row counts."""
    return STARTED // TILE


@triton.jit
def units_of(cu_q, seq_lens, tokens, n_seqs, TILE: tl.constexpr, MANY: tl.constexpr):
    """Return how many units each row is long, and its context's tiles: (MANY,) int32, 0 for rows without keys.

    Row r is mostly that of sequence r; else each row looks for its own.
    """
    row = tl.arange(0, MANY)
    there = row < tokens
    start = tl.load(cu_q + row, mask=there, other=0)
    end = tl.load(cu_q + row + 1, mask=there, other=0)
    seq = row
    if tl.sum((there & ((start != row) | (end != row + 1))).to(tl.int32), 0) > 0:
        seq = tl.zeros([MANY], tl.int32)
        for other in range(1, n_seqs + 1):
            seq += (tl.load(cu_q + other) <= row).to(tl.int32)
    # Rows behind the last sequence are padding of a captured graph.
    length = tl.load(seq_lens + seq, mask=there & (seq < n_seqs), other=0)
    tiles = tl.cdiv(length, TILE)
    return tl.where(tiles > 0, tiles + units_of_start(TILE), 0), tiles


@triton.jit
def row_at(units, at, MANY: tl.constexpr):
    """Return the row that holds unit `at`, and the units of all rows before it."""
    ends = tl.cumsum(units, 0)
    row = tl.sum((ends <= at).to(tl.int32), 0)
    return row, tl.sum(tl.where(tl.arange(0, MANY) < row, units, 0), 0)


@triton.jit
def parts_of(cu_q, seq_lens, tokens, n_seqs, programs, row, TILE: tl.constexpr, MANY: tl.constexpr):
    """Return the first share that holds keys of a row, and how many do."""
    units, tiles = units_of(cu_q, seq_lens, tokens, n_seqs, TILE, MANY)
    each = tl.arange(0, MANY)
    share = tl.maximum(tl.cdiv(tl.sum(units, 0), programs), 1)
    begin = tl.sum(tl.where(each < row, units, 0), 0) + units_of_start(TILE)
    mine = tl.sum(tl.where(each == row, tiles, 0), 0)
    first = begin // share
    return first, tl.where(mine > 0, (begin + mine - 1) // share - first + 1, 0)
