"""Where a kernel's program stands: its query rows, its share of the keys, and the slots of a tile of tokens."""

import triton
import triton.language as tl


@triton.jit
def block_sequence(cu_q, n_seqs, block, block_q, apart):
    """Return the sequence of query block `block`, when sequence s starts at block cu_q[s] // block_q + s * apart.

    With `apart` 1 each sequence has at least ceil(q_len / block_q) blocks without a prefix sum, and the last one
    enough for every row behind cu_q[n_seqs] too; some blocks have nothing to do. With 0, where block_q must be 1, each
    row is a block. In a decode batch cu_q[s] = s, so the answer to that is tried first.
    """
    low = tl.minimum(block - apart * (block // (block_q + 1)), n_seqs - 1)
    high = low
    after = tl.minimum(low + 1, n_seqs - 1)
    early = tl.load(cu_q + low) // block_q + low * apart > block
    late = (after > low) & (tl.load(cu_q + after) // block_q + after * apart <= block)
    if early | late:
        low = tl.full([], 0, tl.int32)
        high = tl.full([], 0, tl.int32) + n_seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(cu_q + middle) // block_q + middle * apart <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def aligned(stride, ALIGN: tl.constexpr):
    """Return `stride`, a multiple of ALIGN, as an expression that shows it: loads and stores then are that wide.

    A hint (tl.multiple_of) on an argument of a kernel is dropped without a word, as there is no operation to bear it.
    """
    return stride // ALIGN * ALIGN


@triton.jit
def split_bounds(split, splits, chunk, begin, end, TILE: tl.constexpr):
    """Return split `split` of the keys [begin, end), tile-aligned from `begin`; it is empty where start >= end.

    chunk > 0, a multiple of TILE, fixes the length of a split whatever the batch (batch invariant); else the keys are
    cut evenly.
    """
    length = chunk
    if chunk == 0:
        length = tl.cdiv(tl.cdiv(end - begin, splits), TILE) * TILE
    # A multiple of TILE anyway; the compiler must see that of 16.
    start = begin + split * (length // 16 * 16)
    return start, tl.minimum(start + length, end)


@triton.jit
def value_rows(v, page, slot, v_page, v_slot, byte, V_BYTE: tl.constexpr):
    """Return pointers to bytes of int4's V rows: (tokens, bytes), or (bytes, tokens) where tokens are adjacent."""
    if V_BYTE == 1:
        rows = v + (page * v_page + slot * v_slot)[:, None] + byte[None, :]
    else:
        rows = v + (page * v_page + slot)[None, :] + (byte * V_BYTE)[:, None]
    return rows


@triton.jit
def in_aligned_sixteen(tokens, end):
    """Return whether a token's aligned group of 16, which lies in one page, begins before `end`.

    As a mask it keeps loads of adjacent tokens wide; bytes behind `end` are some token's nibbles and get weight 0.
    """
    return tokens // 16 * 16 < end


@triton.jit
def slots_of(page_row, tokens, valid, PAGE: tl.constexpr):
    """Return (page, slot) of `tokens` of the sequence whose page table begins at `page_row`; page is int64."""
    page = tl.load(page_row + tokens // PAGE, mask=valid, other=0).to(tl.int64)
    return page, tokens % PAGE
