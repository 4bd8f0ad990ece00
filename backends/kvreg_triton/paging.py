"""Where a kernel's program stands: its sequence, its share of the context, and the slots of a tile of tokens."""

import triton
import triton.language as tl


@triton.jit
def sequence_of(cu_q, n_seqs, row):
    """Return the sequence that owns query row `row`: the first s with cu_q[s + 1] > row, n_seqs where none does.

    In a decode batch row and sequence mostly agree, so that is tried before the binary search.
    """
    low = tl.minimum(row, n_seqs - 1)
    high = low
    if (tl.load(cu_q + low) > row) | (tl.load(cu_q + low + 1) <= row):
        low = tl.full([], 0, tl.int32)
        high = tl.full([], 0, tl.int32) + n_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_q + middle + 1) <= row:
            low = middle + 1
        else:
            high = middle
    return low


@triton.jit
def block_sequence(cu_q, n_seqs, block, block_q):
    """Return the sequence that query block `block` belongs to, when sequence s starts at block cu_q[s] // block_q + s.

    That numbering leaves each sequence at least ceil(q_len / block_q) blocks without a prefix sum, and the last one
    enough for every row behind cu_q[n_seqs] too.
    """
    low = tl.full([], 0, tl.int32)
    high = tl.full([], 0, tl.int32) + n_seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(cu_q + middle) // block_q + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def split_bounds(split, splits, chunk, limit, TILE: tl.constexpr):
    """Return [begin, end) of one split of a context of `limit` tokens, tile-aligned; begin >= end where it is empty.

    chunk > 0 fixes the length of a split whatever the batch (batch invariant); else the context is cut evenly.
    """
    length = chunk
    if chunk == 0:
        length = tl.cdiv(tl.cdiv(limit, splits), TILE) * TILE
    begin = split * length
    return begin, tl.minimum(begin + length, limit)


@triton.jit
def slots_of(page_row, tokens, valid, PAGE: tl.constexpr):
    """Return (page, slot) of `tokens` of the sequence whose page table begins at `page_row`; page is int64."""
    page = tl.load(page_row + tokens // PAGE, mask=valid, other=0).to(tl.int64)
    return page, tokens % PAGE
