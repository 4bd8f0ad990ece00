"""Attention over an int4 cache whose rows are rotated: decode with split KV, prefill, verification, mixed batches.

A row is d / 2 bytes, byte j = channel 2j (low nibble) and 2j + 1 (high), adjacent or, of V, V_BYTE apart with a page's
tokens adjacent. Beside it lies one float32 whose four lowest mantissa bits are the zero point z and whose rest is the
scale s: y[c] = (code[c] - z) * s. Both halves of the attention run on the codes themselves, shifted to -8 .. 7, which
every 16-bit float holds exactly (n = code - 8, z likewise less 8):

    score[t] = (q . n[t] - z_k[t] * sum(q)) * s_k[t]                q rotated, divided by its row's largest magnitude
    out      = sum_t w[t] * m[t] * (n[t] - z_v[t]) / sum_t w[t] / 2**e[t]
               s_v = m * 2**e, 1 <= m < 2; w = exp2(score + e), at most 1 by its own running maximum

q and w m pass through fp16, not bf16: a rotated q in bf16 gives 6e-3 on N(0,1) rows, above the class `exact`. The
shift matters: matrix units truncate when they accumulate, and sums of codes 0 .. 15 that must cancel against the
zero points lost 4e-3 over 8192 tokens on an H200.
A (K, V) pair of one token is d + 8 bytes; at d = 128 an H200 (4.386 TB/s read) could stream 32 tokens in a nanosecond.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import Decode, Prefill
from kvreg_triton.masks import LOG2E, adjusted, block_bounds, row_bounds, with_sink
from kvreg_triton.merging import AT_ONCE, highest, split_weights
from kvreg_triton.paging import aligned, block_sequence, in_aligned_sixteen, slots_of, split_bounds, value_rows
from kvreg_triton.rotation import hadamard, signs
from kvreg_triton.scales import exponents

ZERO_POINT_BITS = tl.constexpr(15)
MIDDLE = tl.constexpr(8.0)
# fp16 with this exponent counts in ones: bits 0x6400 | n are the number 1024 + n for n of 10 bits.
FP16_1024 = tl.constexpr(0x6400)


@triton.jit
def scales_and_zeros(pointers, valid):
    """Split stored scales into (s, z - 8) float32; masked tokens get s = 1."""
    bits = tl.load(pointers, mask=valid, other=1.0).to(tl.int32, bitcast=True)
    return (bits & ~ZERO_POINT_BITS).to(tl.float32, bitcast=True), (bits & ZERO_POINT_BITS).to(tl.float32) - MIDDLE


@triton.jit
def centred(codes, COMPUTE: tl.constexpr):
    """Return code - 8 of the even (low nibble) and odd channels of packed bytes, in COMPUTE.

    fp16 is put together from bits and one exact subtraction, which costs half of an integer conversion.
    """
    if COMPUTE == tl.float16:  # noqa: SIM300 (COMPUTE is the variable)
        wide = codes.to(tl.int16)
        low = ((wide & 15) | FP16_1024).to(tl.float16, bitcast=True) - (1024.0 + MIDDLE)
        high = ((wide >> 4) | FP16_1024).to(tl.float16, bitcast=True) - (1024.0 + MIDDLE)
    else:
        low = (codes & 15).to(COMPUTE) - MIDDLE
        high = (codes >> 4).to(COMPUTE) - MIDDLE
    return low.to(COMPUTE), high.to(COMPUTE)


@triton.jit
def rotated_query(
    q, rows_ok, ROWS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    """Load q rows by their pointers (ROWS, 1), rotate in float32 and scale each row to a largest magnitude of 1.

    Returns even and odd channels in COMPUTE (ROWS, WIDTH / 2), their sum after rounding, and the scale taken out.
    """
    channel = tl.arange(0, WIDTH)
    x = tl.load(q + channel[None, :], mask=rows_ok[:, None] & (channel < HEAD)[None, :], other=0.0).to(tl.float32)
    y = hadamard(x * signs(WIDTH, BLOCK)[None, :], ROWS, WIDTH, BLOCK, LEVELS)
    largest = tl.max(tl.abs(y), 1)
    largest = tl.where(largest == 0.0, 1.0, largest)
    even, odd = tl.split(tl.reshape((y / largest[:, None]).to(COMPUTE), [ROWS, WIDTH // 2, 2]))
    return even, odd, tl.sum(even.to(tl.float32) + odd.to(tl.float32), 1), largest


@triton.jit
def attend_tile(
    even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, top, total,
    k, v, k_scale, v_scale, page_row, begin, end,
    k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
    first, last, position, softcap, slope, range_row,
    HEAD: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, V_BYTE: tl.constexpr,
    MASKED: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of (ROWS,) rows."""
    tokens = begin + tl.arange(0, TILE)
    valid = tl.full([TILE], True, tl.int1)
    if MASKED:
        valid = in_aligned_sixteen(tokens, end)
    page, slot = slots_of(page_row, tokens, valid, PAGE)
    byte = tl.arange(0, HALF)
    inside = byte < HEAD // 2
    from_k = k + (page * k_page + slot * k_slot)[:, None] + byte[None, :]
    codes = tl.load(from_k, mask=valid[:, None] & inside[None, :], other=0)
    s_k, z_k = scales_and_zeros(k_scale + page * ks_page + slot * ks_slot, valid)
    low, high = centred(codes, COMPUTE)
    score = tl.dot(even, tl.trans(low), out_dtype=tl.float32)
    score = tl.dot(odd, tl.trans(high), score, out_dtype=tl.float32)
    score = (score - q_sum[:, None] * z_k[None, :]) * s_k[None, :] * q_scale[:, None]
    score, seen = adjusted(
        score, tokens, first, tl.minimum(last, end), position, end, softcap, slope, range_row,
        SOFTCAP, ALIBI, RANGES, MASKED,
    )  # fmt: skip

    s_v, z_v = scales_and_zeros(v_scale + page * vs_page + slot * vs_slot, valid)
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
    mass = weight * inverse[None, :]
    weight *= (s_v * inverse)[None, :]
    if MASKED:
        mass = tl.where(seen, mass, 0.0)
        weight = tl.where(seen, weight, 0.0)
    total = total * fade + tl.sum(mass, 1)
    rounded = weight.to(COMPUTE)
    # The zero points must meet the same rounded weights as the codes, or the difference does not cancel.
    zeros = zeros * fade + tl.sum(rounded.to(tl.float32) * z_v[None, :], 1)
    from_v = value_rows(v, page, slot, v_page, v_slot, byte, V_BYTE)
    if V_BYTE == 1:
        low, high = centred(tl.load(from_v, mask=valid[:, None] & inside[None, :], other=0), COMPUTE)
    else:
        low, high = centred(tl.load(from_v, mask=valid[None, :] & inside[:, None], other=0), COMPUTE)
        low, high = tl.trans(low), tl.trans(high)
    acc_even = tl.dot(rounded, low, acc_even * fade[:, None], out_dtype=tl.float32)
    acc_odd = tl.dot(rounded, high, acc_odd * fade[:, None], out_dtype=tl.float32)
    return acc_even, acc_odd, zeros, new_top, total


@triton.jit
def unrotated(y, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Undo the rotation of y (ROWS, WIDTH) float32; the factor is 1 / BLOCK, not 1 / head size."""
    return hadamard(y, ROWS, WIDTH, BLOCK, LEVELS) * signs(WIDTH, BLOCK)[None, :] * (1.0 / BLOCK)


@triton.jit(
    do_not_specialize=["tokens", "n_seqs", "group", "apart", "splits", "chunk", "has_lse", "table_row", "window"]
)
def attend(
    q, out, lse, partial_out, partial_lse, page_table, seq_lens, cu_q, tokens, n_seqs, group, apart, splits, chunk,
    has_lse, scale,
    q_row, q_head, out_row, out_head, table_row,
    causal_flags, window, softcap, sinks, slopes, ranges,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, V_BYTE: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, COMPUTE: tl.constexpr,
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

    even, odd, q_sum, q_scale = rotated_query(
        q + (row * q_row + head * q_head)[:, None], mine, ROWS, HEAD, WIDTH, BLOCK, LEVELS, COMPUTE
    )
    q_scale = q_scale * (scale * LOG2E / BLOCK)
    softcap = softcap * LOG2E
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head, mask=mine, other=0.0) * LOG2E
    acc_even = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    acc_odd = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    zeros = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    k_page = aligned(k_page, ALIGN)
    k_slot = aligned(k_slot, ALIGN)
    v_page = aligned(v_page, ALIGN)
    if V_BYTE == 1:
        v_slot = aligned(v_slot, ALIGN)
    k += kv_head * aligned(k_head, ALIGN)
    v += kv_head * aligned(v_head, ALIGN)
    k_scale += kv_head * ks_head
    v_scale += kv_head * vs_head
    page_row = page_table + seq.to(tl.int64) * table_row
    # The loops at the edges are short; pipelining them would only cost registers.
    if WINDOW or RANGES > 0:
        for start in tl.range(begin, tl.minimum(whole, end), TILE, num_stages=1):
            acc_even, acc_odd, zeros, top, total = attend_tile(
                even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, top, total,
                k, v, k_scale, v_scale, page_row, start, end,
                k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
                first, last, position, softcap, slope, range_row,
                HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, True, SOFTCAP, ALIBI, RANGES, COMPUTE,
            )  # fmt: skip
    for start in tl.range(whole, whole_end, TILE, num_stages=STAGES):
        acc_even, acc_odd, zeros, top, total = attend_tile(
            even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, top, total,
            k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, False, SOFTCAP, ALIBI, RANGES, COMPUTE,
        )  # fmt: skip
    for start in tl.range(whole_end, end, TILE, num_stages=1):
        acc_even, acc_odd, zeros, top, total = attend_tile(
            even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, top, total,
            k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, True, SOFTCAP, ALIBI, RANGES, COMPUTE,
        )  # fmt: skip
    acc_even -= zeros[:, None]
    acc_odd -= zeros[:, None]
    if SINKS:
        sink = tl.load(sinks + head, mask=store_ok, other=-float("inf")) * LOG2E
        top, total, fade = with_sink(top, total, tl.where(split + 0 * lane == 0, sink, -float("inf")))
        acc_even *= fade[:, None]
        acc_odd *= fade[:, None]

    channel = tl.arange(0, WIDTH)
    q_heads = tl.num_programs(1) * group
    if SINGLE:
        share = tl.where(total > 0.0, total, 1.0)[:, None]
        y = tl.reshape(tl.join(acc_even / share, acc_odd / share), [ROWS, WIDTH])
        y = unrotated(y, ROWS, WIDTH, BLOCK, LEVELS)
        to = out + (row * out_row + head * out_head)[:, None] + channel[None, :]
        tl.store(to, y.to(out.dtype.element_ty), mask=store_ok[:, None] & (channel < HEAD)[None, :])
        if has_lse:
            tl.store(lse + row * q_heads + head, (top + tl.log2(total)) / LOG2E, mask=store_ok)
    else:
        part = ((row * q_heads + head) * splits + split)[:, None]
        # An empty split writes no rows, but for the first one, which may hold the sink.
        byte = tl.arange(0, WIDTH // 2)
        inside = store_ok[:, None] & (byte < tl.where((begin < end) | (split == 0), HEAD // 2, 0))[None, :]
        tl.store(partial_out + part * HEAD + byte[None, :], acc_even, mask=inside)
        tl.store(partial_out + part * HEAD + HEAD // 2 + byte[None, :], acc_odd, mask=inside)
        tl.store(partial_lse + part * 2, top[:, None], mask=store_ok[:, None])
        tl.store(partial_lse + part * 2 + 1, total[:, None], mask=store_ok[:, None])


@triton.jit(do_not_specialize=["splits", "has_lse"])
def reduce(
    out, lse, partial_out, partial_lse, splits, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row and head in a fixed order and undo the rotation. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    base = highest(partial_lse, part, splits)
    byte = tl.arange(0, WIDTH // 2)
    even = tl.zeros([WIDTH // 2], tl.float32)
    odd = tl.zeros([WIDTH // 2], tl.float32)
    total = 0.0
    for first in range(0, splits, AT_ONCE):
        weight, mass, there = split_weights(partial_lse, part, first, splits, base)
        source = partial_out + (part + first + tl.arange(0, AT_ONCE))[:, None] * HEAD + byte[None, :]
        inside = there[:, None] & (byte < HEAD // 2)[None, :]
        even += tl.sum(weight[:, None] * tl.load(source, mask=inside, other=0.0), 0)
        odd += tl.sum(weight[:, None] * tl.load(source + HEAD // 2, mask=inside, other=0.0), 0)
        total += tl.sum(weight * mass, 0)
    share = tl.where(total > 0.0, total, 1.0)
    y = tl.reshape(tl.join(even / share, odd / share), [1, WIDTH])
    y = tl.reshape(unrotated(y, 1, WIDTH, BLOCK, LEVELS), [WIDTH])
    channel = tl.arange(0, WIDTH)
    to = out + row.to(tl.int64) * out_row + head * out_head + channel
    tl.store(to, y.to(out.dtype.element_ty), mask=channel < HEAD)
    if has_lse:
        tl.store(lse + row.to(tl.int64) * tl.num_programs(1) + head, (base + tl.log2(total)) / LOG2E)


DECODE = Decode(attend, reduce)
PREFILL = Prefill(attend)
