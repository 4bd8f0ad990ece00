"""Attention over an unquantized cache: decode with split KV, prefill and mixed batches.

Rows hold d values of the model's type; softmax and sums run in float32, weights pass through the model's type for
the second dot. A (K, V) pair of one token is 4 d bytes in bf16; at d = 128 an H200 (4.386 TB/s read) could stream
8.6 tokens in a nanosecond.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import Decode, Prefill
from kvreg_triton.paging import block_sequence, sequence_of, slots_of, split_bounds

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_query(q, rows_ok, HEAD: tl.constexpr, WIDTH: tl.constexpr, COMPUTE: tl.constexpr):
    """Load q rows by their pointers (ROWS, 1) as (ROWS, WIDTH) COMPUTE."""
    channel = tl.arange(0, WIDTH)
    x = tl.load(q + channel[None, :], mask=rows_ok[:, None] & (channel < HEAD)[None, :], other=0.0)
    return x.to(COMPUTE)


@triton.jit
def attend_tile(
    query, scale, acc, top, total, k, v, page_row, begin, end, limits, k_page, k_slot, v_page, v_slot,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of (ROWS,) rows; limits (ROWS,) are causal ends."""
    tokens = begin + tl.arange(0, TILE)
    valid = tl.full([TILE], True, tl.int1)
    if MASKED:
        valid = tokens < end
    page, slot = slots_of(page_row, tokens, valid, PAGE)
    channel = tl.arange(0, WIDTH)
    inside = valid[:, None] & (channel < HEAD)[None, :]
    keys = tl.load(k + (page * k_page + slot * k_slot)[:, None] + channel[None, :], mask=inside, other=0.0)
    score = tl.dot(query, tl.trans(keys.to(COMPUTE)), out_dtype=tl.float32) * scale
    if MASKED:
        score = tl.where(tokens[None, :] < limits[:, None], score, -float("inf"))
    new_top = tl.maximum(top, tl.max(score, 1))
    # A row that has seen no token yet keeps -inf; subtracting 0 there gives exp2(-inf) = 0 instead of NaN.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weight, 1)
    values = tl.load(v + (page * v_page + slot * v_slot)[:, None] + channel[None, :], mask=inside, other=0.0)
    values = values.to(COMPUTE)
    acc = acc * fade[:, None]
    if MASKED:
        # A value that is not finite must not reach the rows that do not see its token: 0 * nan is nan. It is left
        # out of the product, and the rows that do see it become nan.
        finite = tl.abs(values.to(tl.float32)) < float("inf")
        seen = tl.where(tokens[None, :] < limits[:, None], 1.0, 0.0)
        spoiled = tl.sum(seen * tl.max(tl.where(finite, 0.0, 1.0), 1)[None, :], 1)
        values = tl.where(finite, values, 0.0).to(COMPUTE)
        acc = tl.where((spoiled > 0.0)[:, None], float("nan"), acc)
    acc = tl.dot(weight.to(COMPUTE), values, acc, out_dtype=tl.float32)
    return acc, new_top, total


@triton.jit(do_not_specialize=["n_seqs", "group", "splits", "chunk", "table_row"])
def decode(
    q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, n_seqs, group, splits, chunk, scale,
    q_row, q_head, out_row, out_head, table_row,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, HAS_LSE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """One query row, the `group` heads of one KV head, one split of the context. Grid (rows, kv_heads, splits)."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = sequence_of(cu_q, n_seqs, row)
    limit = 0
    if seq < n_seqs:
        limit = tl.maximum(tl.load(seq_lens + seq) - tl.load(cu_q + seq + 1) + row + 1, 0)
    begin, end = split_bounds(split, splits, chunk, limit, TILE)

    lane = tl.arange(0, ROWS)
    lane_ok = lane < group
    head = kv_head * group + lane
    query = load_query(q + row.to(tl.int64) * q_row + (head * q_head)[:, None], lane_ok, HEAD, WIDTH, COMPUTE)
    scale = scale * LOG2E
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    limits = tl.zeros([ROWS], tl.int32) + end
    k_page = tl.multiple_of(k_page, ALIGN)
    k_slot = tl.multiple_of(k_slot, ALIGN)
    v_page = tl.multiple_of(v_page, ALIGN)
    v_slot = tl.multiple_of(v_slot, ALIGN)
    k += kv_head * tl.multiple_of(k_head, ALIGN)
    v += kv_head * tl.multiple_of(v_head, ALIGN)
    page_row = page_table + seq.to(tl.int64) * table_row
    whole = begin + tl.maximum(end - begin, 0) // TILE * TILE
    for start in tl.range(begin, whole, TILE, num_stages=STAGES):
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, page_row, start, end, limits, k_page, k_slot, v_page, v_slot,
            HEAD, WIDTH, TILE, PAGE, False, COMPUTE,
        )  # fmt: skip
    if whole < end:
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, page_row, whole, end, limits, k_page, k_slot, v_page, v_slot,
            HEAD, WIDTH, TILE, PAGE, True, COMPUTE,
        )  # fmt: skip

    channel = tl.arange(0, WIDTH)
    q_heads = tl.num_programs(1) * group
    if SINGLE:
        share = tl.where(total > 0.0, total, 1.0)[:, None]
        to = out + row.to(tl.int64) * out_row + (head * out_head)[:, None] + channel[None, :]
        tl.store(to, (acc / share).to(out.dtype.element_ty), mask=lane_ok[:, None] & (channel < HEAD)[None, :])
        if HAS_LSE:
            tl.store(lse + row.to(tl.int64) * q_heads + head, (top + tl.log2(total)) / LOG2E, mask=lane_ok)
    else:
        part = ((row.to(tl.int64) * q_heads + head) * splits + split)[:, None]
        # An empty split writes no rows.
        inside = lane_ok[:, None] & (channel < tl.where(begin < end, HEAD, 0))[None, :]
        tl.store(partial_out + part * HEAD + channel[None, :], acc, mask=inside)
        tl.store(partial_lse + part * 2, top[:, None], mask=lane_ok[:, None])
        tl.store(partial_lse + part * 2 + 1, total[:, None], mask=lane_ok[:, None])


@triton.jit(do_not_specialize=["splits"])
def reduce(
    out, lse, partial_out, partial_lse, splits, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row and head in a fixed order. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    top = -float("inf")
    for split in range(splits):
        top = tl.maximum(top, tl.load(partial_lse + (part + split) * 2))
    base = tl.where(top == -float("inf"), 0.0, top)
    channel = tl.arange(0, WIDTH)
    acc = tl.zeros([WIDTH], tl.float32)
    total = 0.0
    for split in range(splits):
        mass = tl.load(partial_lse + (part + split) * 2 + 1)
        weight = tl.exp2(tl.load(partial_lse + (part + split) * 2) - base)
        # An empty split left its rows unwritten: its mass is exactly 0, and a NaN there must not be multiplied by 0.
        there = channel < tl.where(mass != 0.0, HEAD, 0)
        acc += weight * tl.load(partial_out + (part + split) * HEAD + channel, mask=there, other=0.0)
        total += weight * mass
    share = tl.where(total > 0.0, total, 1.0)
    to = out + row.to(tl.int64) * out_row + head * out_head + channel
    tl.store(to, (acc / share).to(out.dtype.element_ty), mask=channel < HEAD)
    if HAS_LSE:
        tl.store(lse + row.to(tl.int64) * tl.num_programs(1) + head, (top + tl.log2(total)) / LOG2E)


@triton.jit(do_not_specialize=["tokens", "n_seqs", "group", "table_row"])
def prefill(
    q, out, lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, scale,
    q_row, q_head, out_row, out_head, table_row,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr,
    HAS_LSE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """ROWS // group query tokens of one sequence, all heads of one KV head. Grid (blocks, kv_heads)."""
    block_q = ROWS // group
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = block_sequence(cu_q, n_seqs, block, block_q)
    first = tl.load(cu_q + seq)
    q_len = tl.load(cu_q + seq + 1) - first
    lane = tl.arange(0, ROWS)
    index = (block - first // block_q - seq) * block_q + lane // group
    mine = (lane < block_q * group) & (index < q_len)
    # Rows behind the last sequence (padding of a captured graph) are the last sequence's to zero.
    owned = tl.where(seq == n_seqs - 1, tokens - first, q_len)
    store_ok = (lane < block_q * group) & (index < owned)
    limits = tl.where(mine, tl.maximum(tl.load(seq_lens + seq) - q_len + index + 1, 0), 0)
    end = tl.max(limits, 0)
    begin_masked = tl.min(tl.where(mine, limits, end), 0) // TILE * TILE

    row = (first + index).to(tl.int64)
    head = kv_head * group + lane % group
    query = load_query(q + (row * q_row + head * q_head)[:, None], mine, HEAD, WIDTH, COMPUTE)
    scale = scale * LOG2E
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    k_page = tl.multiple_of(k_page, ALIGN)
    k_slot = tl.multiple_of(k_slot, ALIGN)
    v_page = tl.multiple_of(v_page, ALIGN)
    v_slot = tl.multiple_of(v_slot, ALIGN)
    k += kv_head * tl.multiple_of(k_head, ALIGN)
    v += kv_head * tl.multiple_of(v_head, ALIGN)
    page_row = page_table + seq.to(tl.int64) * table_row
    for start in tl.range(0, begin_masked, TILE, num_stages=STAGES):
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, page_row, start, end, limits, k_page, k_slot, v_page, v_slot,
            HEAD, WIDTH, TILE, PAGE, False, COMPUTE,
        )  # fmt: skip
    for start in tl.range(begin_masked, end, TILE, num_stages=STAGES):
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, page_row, start, end, limits, k_page, k_slot, v_page, v_slot,
            HEAD, WIDTH, TILE, PAGE, True, COMPUTE,
        )  # fmt: skip

    share = tl.where(total > 0.0, total, 1.0)[:, None]
    channel = tl.arange(0, WIDTH)
    to = out + (row * out_row + head * out_head)[:, None] + channel[None, :]
    tl.store(to, (acc / share).to(out.dtype.element_ty), mask=store_ok[:, None] & (channel < HEAD)[None, :])
    if HAS_LSE:
        to = lse + row * (tl.num_programs(1) * group) + head
        tl.store(to, (top + tl.log2(total)) / LOG2E, mask=store_ok)


DECODE = Decode(decode, reduce)
PREFILL = Prefill(prefill)
