"""What prefill over laid out rows leaves to pages: the portable kernels, for the sequences that are not laid out."""

import triton
import triton.language as tl

from kvreg_cuda.paging import is_laid_out
from kvreg_triton import attend_int4, attend_rows
from kvreg_triton.paging import block_sequence


@triton.jit
def is_left(cu_q, seq_lens, n_seqs, group, apart, laid_from, laid_to, ROWS: tl.constexpr):
    """Return whether this program's sequence has less than `laid_from` query rows, or more than `laid_to` tokens."""
    block_q = tl.where(apart == 0, 1, ROWS // group)
    seq = block_sequence(cu_q, n_seqs, tl.program_id(0), block_q, apart)
    return not is_laid_out(tl.load(cu_q + seq + 1) - tl.load(cu_q + seq), tl.load(seq_lens + seq), laid_from, laid_to)


@triton.jit(
    do_not_specialize=[
        "tokens", "n_seqs", "group", "apart", "splits", "chunk", "has_lse", "table_row", "window", "laid_from",
        "laid_to",
    ]
)  # fmt: skip
def attend_rows_left(
    q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart, splits, chunk,
    has_lse, scale, q_row, q_head, out_row, out_head, table_row, causal_flags, window, softcap, sinks, slopes,
    ranges, k, v, k_page, k_slot, k_head, v_page, v_slot, v_head, k_scale, v_scale, ks_page, ks_slot, ks_head,
    vs_page, vs_slot, vs_head, tensor_scales, laid_from, laid_to,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, SCALED: tl.constexpr, TENSOR_SCALED: tl.constexpr,
    COMPUTE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Do what kvreg_triton.attend_rows.attend does, for what is left. Takes its arguments; the same grid."""
    if is_left(cu_q, seq_lens, n_seqs, group, apart, laid_from, laid_to, ROWS):
        attend_rows.attend(
            q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart,
            splits, chunk, has_lse, scale, q_row, q_head, out_row, out_head, table_row, causal_flags,
            window, softcap, sinks, slopes, ranges, k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
            k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales, HEAD,
            WIDTH, ROWS, TILE, PAGE, ALIGN, STAGES, SINGLE, CAUSAL, WINDOW, SOFTCAP, SINKS, ALIBI, RANGES,
            SCALED, TENSOR_SCALED, COMPUTE, VALUES,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "tokens", "n_seqs", "group", "apart", "splits", "chunk", "has_lse", "table_row", "window", "laid_from",
        "laid_to",
    ]
)  # fmt: skip
def attend_int4_left(
    q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart, splits, chunk,
    has_lse, scale, q_row, q_head, out_row, out_head, table_row, causal_flags, window, softcap, sinks, slopes,
    ranges, k, v, k_page, k_slot, k_head, v_page, v_slot, v_head, k_scale, v_scale, ks_page, ks_slot, ks_head,
    vs_page, vs_slot, vs_head, laid_from, laid_to,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, V_BYTE: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Do what kvreg_triton.attend_int4.attend does, for what is left. Takes its arguments; the same grid."""
    if is_left(cu_q, seq_lens, n_seqs, group, apart, laid_from, laid_to, ROWS):
        attend_int4.attend(
            q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart,
            splits, chunk, has_lse, scale, q_row, q_head, out_row, out_head, table_row, causal_flags,
            window, softcap, sinks, slopes, ranges, k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
            k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, HEAD, WIDTH, BLOCK,
            LEVELS, ROWS, TILE, PAGE, ALIGN, V_BYTE, STAGES, SINGLE, CAUSAL, WINDOW, SOFTCAP, SINKS, ALIBI,
            RANGES, COMPUTE,
        )  # fmt: skip
