"""Where a kernel's program stands: its query rows, its share of the keys, and the slots of a tile of tokens."""

import triton
import triton.language as tl


@triton.jit
def block_sequence(cu_q, n_seqs, block, block_q):
    """Return the sequence that query block `block` belongs to, when sequence s starts at block cu_q[s] // block_q + s.

    That numbering leaves each sequence at least ceil(q_len / block_q) blocks without a prefix sum, and the last one
    enough for every row behind cu_q[n_seqs] too. In a decode batch cu_q[s] = s, so the answer to that is tried first.
    """
    low = tl.minimum(block - block // (block_q + 1), n_seqs - 1)
    high = low
    after = tl.minimum(low + 1, n_seqs - 1)
    early = tl.load(cu_q + low) // block_q + low > block
    late = (after > low) & (tl.load(cu_q + after) // block_q + after <= block)
    if early | late:
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
def split_bounds(split, splits, chunk, begin, end, TILE: tl.constexpr):
    """Return split `split` of the keys [begin, end), tile-aligned from `begin`; it is empty where start >= end.

    chunk > 0 fixes the length of a split whatever the batch (batch invariant); else the keys are cut evenly.
    """
    length = chunk
    if chunk == 0:
        length = tl.cdiv(tl.cdiv(end - begin, splits), TILE) * TILE
    start = begin + split * length
    return start, tl.minimum(start + length, end)


@triton.jit
def slots_of(page_row, tokens, valid, PAGE: tl.constexpr):
    """Return (page, slot) of `tokens` of the sequence whose page table begins at `page_row`; page is int64."""
    page = tl.load(page_row + tokens // PAGE, mask=valid, other=0).to(tl.int64)
    return page, tokens % PAGE
