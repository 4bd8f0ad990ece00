"""Attention over a cache of whole values of 8 or 16 bits: decode with split KV, prefill, verification, mixed batches.

`none` rows hold d values of the model's type, `int8` and `fp8` per token and head rows d codes beside one float32
scale, `fp8_per_tensor` rows d codes under one scale for all of K and one for all of V:

    score[t] = (q . k[t]) * s_k[t]
    out      = sum_t w[t] * m[t] * v[t] / sum_t w[t] / 2**e[t]
               s_v = m * 2**e, 1 <= m < 2; w = exp2(score + e), at most 1 by its own running maximum; without row
               scales s_v is 1

q meets the codes in the model's type, which holds them exactly. Weights w m pass through fp16 before they meet
codes (VALUES), through the model's type where V is of that type. A (K, V) pair of one token is 4 d bytes in bf16; at
d = 128 an H200 (4.386 TB/s read) could stream 8.6 tokens in a nanosecond, in 8 bits 16.6.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import Decode, Prefill
from kvreg_triton.masks import LOG2E, adjusted, block_bounds, row_bounds, with_sink
from kvreg_triton.merging import AT_ONCE, highest, split_weights
from kvreg_triton.paging import aligned, block_sequence, slots_of, split_bounds
from kvreg_triton.scales import exponents


@triton.jit
def load_query(q, rows_ok, HEAD: tl.constexpr, WIDTH: tl.constexpr, COMPUTE: tl.constexpr):
    """Load q rows by their pointers (ROWS, 1) as (ROWS, WIDTH) COMPUTE."""
    channel = tl.arange(0, WIDTH)
    x = tl.load(q + channel[None, :], mask=rows_ok[:, None] & (channel < HEAD)[None, :], other=0.0)
    return x.to(COMPUTE)


@triton.jit
def row_scales(pointers, valid):
    """Load stored scales (TILE,) float32; masked tokens get 1."""
    return tl.load(pointers, mask=valid, other=1.0)


@triton.jit
def attend_tile(
    query, scale, acc, top, total, k, v, k_scale, v_scale, page_row, begin, end,
    k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
    first, last, position, softcap, slope, range_row,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr, SCALED: tl.constexpr, COMPUTE: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of (ROWS,) rows."""
    tokens = begin + tl.arange(0, TILE)
    valid = tl.full([TILE], True, tl.int1)
    if MASKED:
        valid = tokens < end
    page, slot = slots_of(page_row, tokens, valid, PAGE)
    channel = tl.arange(0, WIDTH)
    inside = valid[:, None] & (channel < HEAD)[None, :]
    keys = tl.load(k + (page * k_page + slot * k_slot)[:, None] + channel[None, :], mask=inside, other=0.0)
    score = tl.dot(query, tl.trans(keys.to(COMPUTE)), out_dtype=tl.float32) * scale
    if SCALED:
        score *= row_scales(k_scale + page * ks_page + slot * ks_slot, valid)[None, :]
    score, seen = adjusted(
        score, tokens, first, tl.minimum(last, end), position, end, softcap, slope, range_row,
        SOFTCAP, ALIBI, RANGES, MASKED,
    )  # fmt: skip
    if SCALED:
        s_v = row_scales(v_scale + page * vs_page + slot * vs_slot, valid)
        power, inverse = exponents(s_v)
        score += power[None, :]
        if MASKED:
            # A scale that is not finite must not reach the rows that do not see its token: 0 * nan is nan.
            score = tl.where(seen, score, -float("inf"))
    new_top = tl.maximum(top, tl.max(score, 1))
    # A row that has seen no token yet keeps -inf; subtracting 0 there gives exp2(-inf) = 0 instead of NaN.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    mass = weight
    if SCALED:
        mass = weight * inverse[None, :]
        weight *= (s_v * inverse)[None, :]
        if MASKED:
            mass = tl.where(seen, mass, 0.0)
            weight = tl.where(seen, weight, 0.0)
    total = total * fade + tl.sum(mass, 1)
    values = tl.load(v + (page * v_page + slot * v_slot)[:, None] + channel[None, :], mask=inside, other=0.0)
    values = values.to(VALUES)
    acc = acc * fade[:, None]
    if MASKED and not SCALED:
        # The same for a value: it is left out of the product, and the rows that do see it become nan.
        finite = tl.abs(values.to(tl.float32)) < float("inf")
        spoiled = tl.max(tl.where(finite, 0.0, 1.0), 1)
        acc = tl.where((tl.max(tl.where(seen, spoiled[None, :], 0.0), 1) > 0.0)[:, None], float("nan"), acc)
        values = tl.where(finite, values, 0.0).to(VALUES)
    acc = tl.dot(weight.to(VALUES), values, acc, out_dtype=tl.float32)
    return acc, new_top, total


@triton.jit(
    do_not_specialize=["tokens", "n_seqs", "group", "apart", "splits", "chunk", "has_lse", "table_row", "window"]
)
def attend(
    q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart, splits, chunk,
    has_lse, scale,
    q_row, q_head, out_row, out_head, table_row,
    causal_flags, window, softcap, sinks, slopes, ranges,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, SCALED: tl.constexpr, TENSOR_SCALED: tl.constexpr,
    COMPUTE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """ROWS // group query tokens of one sequence, all heads of one KV head, one split of the keys.

    With `apart` 0 one query token. Grid (blocks, kv_heads, splits).
    """
    block_q = tl.where(apart == 0, 1, ROWS // group)
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = block_sequence(cu_q, n_seqs, block, block_q, apart)
    start_row = tl.load(cu_q + seq)
    q_len = tl.load(cu_q + seq + 1) - start_row
    # Rows behind the last sequence (padding of a captured graph) are the last sequence's to zero.
    owned = tl.where(seq == n_seqs - 1, tokens - start_row, q_len)
    block_index = (block - start_row // block_q - seq * apart) * block_q
    if block_index >= owned:
        return
    lane = tl.arange(0, ROWS)
    index = block_index + lane // group
    store_ok = (lane < block_q * group) & (index < owned)
    mine = store_ok & (index < q_len)
    row = (start_row + index).to(tl.int64)
    head = kv_head * group + lane % group

    seq_len = tl.load(seq_lens + seq)
    position = seq_len - q_len + index
    range_row = ranges + seq.to(tl.int64) * (2 * RANGES)
    first, last = row_bounds(position, mine, seq, seq_len, window, causal_flags, CAUSAL, WINDOW)
    begin, end, all_begin, all_end = block_bounds(first, last, position, mine, seq_len, range_row, RANGES)
    # Rows that are only to be zeroed see nothing: beside one, every tile is masked.
    all_end = tl.min(tl.where(store_ok, last, all_end), 0)
    if not SINGLE:
        begin, end = split_bounds(split, splits, chunk, begin, end, TILE)
    whole = begin + tl.cdiv(tl.maximum(all_begin - begin, 0), TILE) * TILE
    whole_end = whole + tl.maximum(tl.minimum(all_end, end) - whole, 0) // TILE * TILE

    query = load_query(q + (row * q_row + head * q_head)[:, None], mine, HEAD, WIDTH, COMPUTE)
    scale = scale * LOG2E
    if TENSOR_SCALED:
        scale = scale * tl.load(tensor_scales)
    softcap = softcap * LOG2E
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head, mask=mine, other=0.0) * LOG2E
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    k_page = aligned(k_page, ALIGN)
    k_slot = aligned(k_slot, ALIGN)
    v_page = aligned(v_page, ALIGN)
    v_slot = aligned(v_slot, ALIGN)
    k += kv_head * aligned(k_head, ALIGN)
    v += kv_head * aligned(v_head, ALIGN)
    k_scale += kv_head * ks_head
    v_scale += kv_head * vs_head
    page_row = page_table + seq.to(tl.int64) * table_row
    # The loops at the edges are short; pipelining them would only cost registers.
    if WINDOW or RANGES > 0:
        for start in tl.range(begin, tl.minimum(whole, end), TILE, num_stages=1):
            acc, top, total = attend_tile(
                query, scale, acc, top, total, k, v, k_scale, v_scale, page_row, start, end,
                k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
                first, last, position, softcap, slope, range_row,
                HEAD, WIDTH, TILE, PAGE, True, SOFTCAP, ALIBI, RANGES, SCALED, COMPUTE, VALUES,
            )  # fmt: skip
    for start in tl.range(whole, whole_end, TILE, num_stages=STAGES):
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH, TILE, PAGE, False, SOFTCAP, ALIBI, RANGES, SCALED, COMPUTE, VALUES,
        )  # fmt: skip
    for start in tl.range(whole_end, end, TILE, num_stages=1):
        acc, top, total = attend_tile(
            query, scale, acc, top, total, k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH, TILE, PAGE, True, SOFTCAP, ALIBI, RANGES, SCALED, COMPUTE, VALUES,
        )  # fmt: skip
    if TENSOR_SCALED:
        acc *= tl.load(tensor_scales + 1)
    if SINKS:
        sink = tl.load(sinks + head, mask=store_ok, other=-float("inf")) * LOG2E
        top, total, fade = with_sink(top, total, tl.where(split + 0 * lane == 0, sink, -float("inf")))
        acc *= fade[:, None]

    channel = tl.arange(0, WIDTH)
    q_heads = tl.num_programs(1) * group
    if SINGLE:
        share = tl.where(total > 0.0, total, 1.0)[:, None]
        to = out + (row * out_row + head * out_head)[:, None] + channel[None, :]
        tl.store(to, (acc / share).to(out.dtype.element_ty), mask=store_ok[:, None] & (channel < HEAD)[None, :])
        if has_lse:
            tl.store(lse + row * q_heads + head, (top + tl.log2(total)) / LOG2E, mask=store_ok)
    else:
        part = ((row * q_heads + head) * splits + split)[:, None]
        # An empty split writes no rows, but for the first one, which may hold the sink.
        inside = store_ok[:, None] & (channel < tl.where((begin < end) | (split == 0), HEAD, 0))[None, :]
        tl.store(partial_out + part * HEAD + channel[None, :], acc, mask=inside)
        tl.store(partial_lse + part * 2, top[:, None], mask=store_ok[:, None])
        tl.store(partial_lse + part * 2 + 1, total[:, None], mask=store_ok[:, None])


@triton.jit(do_not_specialize=["splits", "has_lse"])
def reduce(
    out, lse, partial_out, partial_lse, splits, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row and head in a fixed order. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    base = highest(partial_lse, part, splits)
    channel = tl.arange(0, WIDTH)
    acc = tl.zeros([WIDTH], tl.float32)
    total = 0.0
    for first in range(0, splits, AT_ONCE):
        weight, mass, there = split_weights(partial_lse, part, first, splits, base)
        source = partial_out + (part + first + tl.arange(0, AT_ONCE))[:, None] * HEAD + channel[None, :]
        inside = there[:, None] & (channel < HEAD)[None, :]
        acc += tl.sum(weight[:, None] * tl.load(source, mask=inside, other=0.0), 0)
        total += tl.sum(weight * mass, 0)
    share = tl.where(total > 0.0, total, 1.0)
    to = out + row.to(tl.int64) * out_row + head * out_head + channel
    tl.store(to, (acc / share).to(out.dtype.element_ty), mask=channel < HEAD)
    if has_lse:
        tl.store(lse + row.to(tl.int64) * tl.num_programs(1) + head, (base + tl.log2(total)) / LOG2E)


DECODE = Decode(attend, reduce)
PREFILL = Prefill(attend)
