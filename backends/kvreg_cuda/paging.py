"""Where a program's query rows and the rows of a cache lie: as in kvreg_triton.paging, with fewer loads in a chain."""

import triton
import triton.language as tl


@triton.jit
def place_of(page_row, tokens, valid, PAGE: tl.constexpr):
    """Do what kvreg_triton.paging.slots_of does for tokens that are not negative: 3 instructions a token less."""
    token = tokens.to(tl.uint32, bitcast=True)
    page = tl.load(page_row + (token // PAGE).to(tl.int32, bitcast=True), mask=valid, other=0).to(tl.int64)
    return page, (token % PAGE).to(tl.int32, bitcast=True)


@triton.jit
def sequence_of(cu_q, seq_lens, n_seqs, block, block_q, apart):
    """Return kvreg_triton.paging.block_sequence, with its first row, its rows and its tokens in the cache.

    All are asked for at once of the sequence that it is in a decode batch; another is searched for.
    """
    seq = tl.minimum(block - apart * (block // (block_q + 1)), n_seqs - 1)
    start = tl.load(cu_q + seq)
    stop = tl.load(cu_q + seq + 1)
    tokens = tl.load(seq_lens + seq)
    early = start // block_q + seq * apart > block
    late = (seq < n_seqs - 1) & (stop // block_q + (seq + 1) * apart <= block)
    if early | late:
        low = tl.full([], 0, tl.int32)
        high = tl.full([], 0, tl.int32) + n_seqs - 1
        while low < high:
            middle = (low + high + 1) // 2
            if tl.load(cu_q + middle) // block_q + middle * apart <= block:
                low = middle
            else:
                high = middle - 1
        seq = low
        start = tl.load(cu_q + seq)
        stop = tl.load(cu_q + seq + 1)
        tokens = tl.load(seq_lens + seq)
    return seq, start, stop - start, tokens


@triton.jit
def is_laid_out(q_len, seq_len, least, most):
    """Return whether a sequence of `q_len` query rows and `seq_len` tokens is read from rows that were laid out.

    Two launches share a batch by this: from pages too few blocks read its rows for them to be unpacked first.
    """
    return (q_len >= least) & (seq_len <= most)
