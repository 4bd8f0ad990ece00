"""Decode over an int4 cache on int8 matrix units, exact: the rounding residue of Q and of the weights rides along.

The cache is that of kvreg_triton.attend_int4 (n = code, z = zero point, s = scale of a row). Both products are of
integers, so a nibble needs a mask and no conversion, and nothing is rounded where they add up:

    q / largest(q) * 127 = h + l / 254       h, l integers within +-127; so q is known to 1 part in 64 516
    score[t] = ((h . n[t]) * 254 + l . n[t] - z_k[t] * sum(254 h + l)) * s_k[t] * scale_q
    w[t] * s_v[t] / largest of the tile * 127 = h + l / 254, and the same of the values

How the integers fill matrix instructions: kvreg_cuda.int4_operands. Groups up to 16; wider ones take the portable
kernel.

Longer than other modules: a kernel family stays in one file, so that a change stales the traces of this one alone.
"""

import triton
import triton.language as tl

from kvreg_cuda.int4_operands import (
    FINER,
    LEVELS_OF_CODE,
    among_all,
    as_operand,
    folded,
    key_order,
    larger_or_nan,
    largest_of,
    nibbles,
    of_each_key,
    own,
    own_scales,
    quantized,
    quantized_query,
    stacked,
    sum_with,
)
from kvreg_cuda.joining import Joined
from kvreg_cuda.launching import let_dependents_start
from kvreg_cuda.paging import place_of, sequence_of
from kvreg_cuda.shares import row_at, units_of, units_of_start
from kvreg_cuda.unit_rotation import lines, load_lines, rotated
from kvreg_triton.attend_int4 import unrotated
from kvreg_triton.masks import LOG2E, adjusted, block_bounds, row_bounds, with_sink
from kvreg_triton.paging import aligned, split_bounds

ZERO_POINT_BITS = tl.constexpr(15)
LEAST = tl.constexpr(4e-37)
"""Weights of a tile below this fade to zero: 127 divided by anything smaller overflows float32."""
FADED = tl.constexpr(2.0**-16)
"""A tile whose largest weight is below this share of the largest so far is rounded as if it had one of that: in steps
of 2**-31 of the largest. 131072 keys that were all rounded the same way would err by 2**-15 of it together."""


@triton.jit
def scales_and_zeros(pointers, valid):
    """Split stored scales into s, float32, and z, int32; masked tokens get s = 1.

    The bits of z stay in s, which they change by at most 15 / 2**23 of itself: taking them out costs more than that.
    """
    stored = tl.load(pointers, mask=valid, other=1.0)
    return stored, stored.to(tl.int32, bitcast=True) & ZERO_POINT_BITS


@triton.jit
def values_by_tokens(
    v, page_row, begin, end, v_page, inside, HALF: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr,
    V_BYTE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load the V codes of a tile that begins at a multiple of 16: (TILE / 16 * HALF, 16), sixteen tokens of a byte.

    As (HALF, TILE) neighbouring threads would take 16 bytes of each page in turn: four times as many requests to L2,
    which then limit the kernel (docs/performance.md).
    """
    sixteen = begin + tl.arange(0, TILE // 16) * 16
    there = tl.full([TILE // 16], True, tl.int1)
    if MASKED:
        # Whole groups keep loads wide; bytes behind `end` are some token's nibbles and get weight 0.
        there = sixteen < end
    page, _ = place_of(page_row, sixteen, there, PAGE)
    rows: tl.constexpr = TILE // 16 * HALF
    # Only page numbers are reshaped: the compiler must see which multiples the products with strides are.
    page = tl.reshape(tl.broadcast_to(page[:, None], [TILE // 16, HALF]), [rows])
    mask = tl.reshape(there[:, None] & inside[None, :], [rows])
    row = tl.arange(0, rows)
    slot = ((begin + row // HALF * 16).to(tl.uint32, bitcast=True) % PAGE).to(tl.int32, bitcast=True)
    from_v = page * v_page + slot + row % HALF * V_BYTE
    return tl.load(v + (from_v[:, None] + tl.arange(0, 16)[None, :]), mask=mask[:, None], other=0)


@triton.jit
def as_rows(codes, HALF: tl.constexpr, TILE: tl.constexpr):
    """Bring (TILE / 16 * HALF, 16) into (TILE, HALF)."""
    return tl.reshape(tl.permute(tl.reshape(codes, [TILE // 16, HALF, 16]), (0, 2, 1)), [TILE, HALF])


@triton.jit
def attend_tile(
    even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, unit, peak, top, total,
    k, v, k_scale, v_scale, page_row, begin, end,
    k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
    first, last, position, softcap, slope, range_row,
    HEAD: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, V_BYTE: tl.constexpr,
    MASKED: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr, ROWS: tl.constexpr,
    SUBSETS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of ROWS rows.

    acc_even, acc_odd and zeros are counted in `unit`, that of the tile before, so that a tile is added by one fused
    multiply-add; `peak` is the largest weight times scale of V so far, as it weighs now.
    """
    keys = begin + key_order(TILE)
    valid = tl.full([TILE], True, tl.int1)
    if MASKED:
        valid = keys < end
    page, slot = place_of(page_row, keys, valid, PAGE)
    byte = tl.arange(0, HALF)
    inside = byte < HEAD // 2
    from_k = k + (page * k_page + slot * k_slot)[:, None] + byte[None, :]
    codes = tl.load(from_k, mask=valid[:, None] & inside[None, :], other=0)
    s_k, z_k = scales_and_zeros(k_scale + page * ks_page + slot * ks_slot, valid)
    low, high = nibbles(codes)
    product = tl.dot(even, tl.trans(low), out_dtype=tl.int32)
    product = folded(tl.dot(odd, tl.trans(high), product, out_dtype=tl.int32), ROWS, TILE)
    s_v, z_v = scales_and_zeros(v_scale + page * vs_page + slot * vs_slot, valid)
    PLAIN: tl.constexpr = not (MASKED or SOFTCAP or ALIBI)
    APART: tl.constexpr = SUBSETS > 1 and PLAIN
    if APART:
        product = own(product, ROWS, SUBSETS, TILE)
        s_k, z_k = own_scales(s_k, ROWS, SUBSETS, TILE), own_scales(z_k, ROWS, SUBSETS, TILE)
        s_v, z_v = own_scales(s_v, ROWS, SUBSETS, TILE), own_scales(z_v, ROWS, SUBSETS, TILE)
    else:
        s_k, z_k, s_v, z_v = s_k[None, :], z_k[None, :], s_v[None, :], z_v[None, :]
    score = (product - q_sum[:, None] * z_k).to(tl.float32) * s_k
    if PLAIN:
        highest = tl.max(score, 1) * q_scale
    else:
        score, seen = adjusted(
            score * q_scale[:, None], keys, first, tl.minimum(last, end), position, end, softcap, slope, range_row,
            SOFTCAP, ALIBI, RANGES, MASKED,
        )  # fmt: skip
        if SUBSETS > 1:
            seen = seen & of_each_key(ROWS, SUBSETS, TILE)
            score = tl.where(seen, score, -float("inf"))
        highest = tl.max(score, 1)
    new_top = tl.maximum(top, highest)
    # A row that has seen no token yet keeps -inf; subtracting 0 there gives exp2(-inf) = 0 instead of NaN.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    if PLAIN:
        score *= q_scale[:, None]
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weight, 1)

    weight *= s_v
    if MASKED:
        # A scale that is not finite must not reach the rows that do not see its token: 0 * nan is nan.
        weight = tl.where(seen, weight, 0.0)
    largest = largest_of(weight)
    peak = larger_or_nan(peak * fade, largest)
    # Weights far below those that count need no steps of their own: results in steps so fine would overflow.
    largest = larger_or_nan(larger_or_nan(largest, peak * FADED), LEAST)
    one = 1.0 / largest
    fade = unit * fade * one
    high_w, low_w = quantized(weight, (one * LEVELS_OF_CODE)[:, None])
    # The zero points must meet the same rounded weights as the codes, or the difference does not cancel.
    zero = sum_with(high_w, low_w, tl.broadcast_to(z_v, high_w.shape), WORDS)
    zeros = zeros * fade + zero.to(tl.float32)
    if APART:
        high_w, low_w = among_all(high_w, ROWS, SUBSETS, TILE), among_all(low_w, ROWS, SUBSETS, TILE)
    weights = as_operand(stacked(high_w, low_w, ROWS, TILE), ROWS, TILE)

    if V_BYTE == 1:
        tokens = begin + tl.arange(0, TILE)
        there = tl.full([TILE], True, tl.int1)
        if MASKED:
            there = tokens < end
        page, slot = place_of(page_row, tokens, there, PAGE)
        from_v = v + (page * v_page + slot * v_slot)[:, None] + byte[None, :]
        low, high = nibbles(tl.load(from_v, mask=there[:, None] & inside[None, :], other=0))
    else:
        codes = values_by_tokens(v, page_row, begin, end, v_page, inside, HALF, TILE, PAGE, V_BYTE, MASKED)
        low, high = nibbles(codes)
        low, high = as_rows(low, HALF, TILE), as_rows(high, HALF, TILE)
    even = folded(tl.dot(weights, low, out_dtype=tl.int32), ROWS, HALF).to(tl.float32)
    odd = folded(tl.dot(weights, high, out_dtype=tl.int32), ROWS, HALF).to(tl.float32)
    acc_even = acc_even * fade[:, None] + even
    acc_odd = acc_odd * fade[:, None] + odd
    return acc_even, acc_odd, zeros, largest, peak, new_top, total


@triton.jit
def query_lines(
    q, first_row, rows, group, kv_head, q_row, q_head, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Ask for the q of `rows` query tokens before it is needed: it comes while lengths and pages are looked up."""
    line = lines(ROWS, WIDTH) % MEMBERS
    row = (first_row + line // group).to(tl.int64)
    from_q = q + row * q_row + (kv_head * group + line % group) * q_head
    return load_lines(from_q, line < rows * group, HEAD, ROWS, WIDTH)


@triton.jit
def attend_keys(
    x, out, lse, partial_out, partial_lse, page_row, first_row, rows, group, kv_head,
    begin, end, whole, whole_end, first, last, position, splits, split, leads,
    has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, V_BYTE: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, SUBSETS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Attend `rows` query tokens from `first_row`, whose q is x, to keys [begin, end), and store what comes of it.

    Tiles in [whole, whole_end) are seen by every row whole. Partial results go to (row * q_heads + head) * splits +
    split of the workspace; `leads`: whether a sink is counted here.
    """
    MEMBERS: tl.constexpr = ROWS // SUBSETS
    rotated_q = rotated(x, ROWS, WIDTH, BLOCK, LEVELS)
    even, odd, q_sum, q_scale = quantized_query(rotated_q, scale * LOG2E / BLOCK, ROWS, WIDTH)
    softcap = softcap * LOG2E
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        lane = tl.arange(0, ROWS) % MEMBERS
        slope = tl.load(slopes + kv_head * group + lane % group, mask=lane < rows * group, other=0.0) * LOG2E
    acc_even = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    acc_odd = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    zeros = tl.zeros([ROWS], tl.float32)
    unit = tl.zeros([ROWS], tl.float32)
    peak = tl.zeros([ROWS], tl.float32)
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
    # The loops at the edges are short; pipelining them would only cost registers.
    if WINDOW or RANGES > 0:
        for start in tl.range(begin, tl.minimum(whole, end), TILE, num_stages=1):
            acc_even, acc_odd, zeros, unit, peak, top, total = attend_tile(
                even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, unit, peak, top, total,
                k, v, k_scale, v_scale, page_row, start, end,
                k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
                first, last, position, softcap, slope, range_row,
                HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, True, SOFTCAP, ALIBI, RANGES, ROWS, SUBSETS, WORDS,
            )  # fmt: skip
    for start in tl.range(whole, whole_end, TILE, num_stages=STAGES):
        acc_even, acc_odd, zeros, unit, peak, top, total = attend_tile(
            even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, unit, peak, top, total,
            k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, False, SOFTCAP, ALIBI, RANGES, ROWS, SUBSETS, WORDS,
        )  # fmt: skip
    for start in tl.range(whole_end, end, TILE, num_stages=1):
        acc_even, acc_odd, zeros, unit, peak, top, total = attend_tile(
            even, odd, q_sum, q_scale, acc_even, acc_odd, zeros, unit, peak, top, total,
            k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, V_BYTE, True, SOFTCAP, ALIBI, RANGES, ROWS, SUBSETS, WORDS,
        )  # fmt: skip
    unit *= 1.0 / (LEVELS_OF_CODE * FINER)
    acc_even = (acc_even - zeros[:, None]) * unit[:, None]
    acc_odd = (acc_odd - zeros[:, None]) * unit[:, None]
    lane = tl.arange(0, MEMBERS)
    if SUBSETS > 1:
        tops = tl.reshape(top, [SUBSETS, MEMBERS])
        top = tl.max(tops, 0)
        share = tl.exp2(tops - tl.where(top == -float("inf"), 0.0, top)[None, :])
        total = tl.sum(tl.reshape(total, [SUBSETS, MEMBERS]) * share, 0)
        acc_even = tl.sum(tl.reshape(acc_even, [SUBSETS, MEMBERS, WIDTH // 2]) * share[:, :, None], 0)
        acc_odd = tl.sum(tl.reshape(acc_odd, [SUBSETS, MEMBERS, WIDTH // 2]) * share[:, :, None], 0)
    store_ok = lane < rows * group
    row = (first_row + lane // group).to(tl.int64)
    head = kv_head * group + lane % group
    if SINKS:
        sink = tl.load(sinks + head, mask=store_ok, other=-float("inf")) * LOG2E
        top, total, fade = with_sink(top, total, tl.where(leads & (lane >= 0), sink, -float("inf")))
        acc_even *= fade[:, None]
        acc_odd *= fade[:, None]

    q_heads = tl.num_programs(1) * group
    if SINGLE:
        channel = tl.arange(0, WIDTH)
        share = tl.where(total > 0.0, total, 1.0)[:, None]
        y = tl.reshape(tl.join(acc_even / share, acc_odd / share), [MEMBERS, WIDTH])
        y = unrotated(y, MEMBERS, WIDTH, BLOCK, LEVELS)
        to = out + (row * out_row + head * out_head)[:, None] + channel[None, :]
        tl.store(to, y.to(out.dtype.element_ty), mask=store_ok[:, None] & (channel < HEAD)[None, :])
        if has_lse:
            tl.store(lse + row * q_heads + head, (top + tl.log2(total)) / LOG2E, mask=store_ok)
    else:
        part = ((row * q_heads + head) * splits + split)[:, None]
        # An empty split writes no rows, but for the first one, which may hold the sink.
        byte = tl.arange(0, WIDTH // 2)
        inside = store_ok[:, None] & (byte < tl.where((begin < end) | leads, HEAD // 2, 0))[None, :]
        tl.store(partial_out + part * HEAD + byte[None, :], acc_even, mask=inside)
        tl.store(partial_out + part * HEAD + HEAD // 2 + byte[None, :], acc_odd, mask=inside)
        tl.store(partial_lse + part * 2, top[:, None], mask=store_ok[:, None])
        tl.store(partial_lse + part * 2 + 1, total[:, None], mask=store_ok[:, None])


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
    ALIBI: tl.constexpr, RANGES: tl.constexpr, COMPUTE: tl.constexpr, SUBSETS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """ROWS // group query tokens of one sequence (with `apart` 0 one), all heads of one KV head, a split of keys.

    Takes the arguments of kvreg_triton.attend_int4.attend and leaves the same partial results. ROWS is 8 or 16,
    COMPUTE is not read. Grid (blocks, kv_heads, splits).
    """
    let_dependents_start()
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    MEMBERS: tl.constexpr = ROWS // SUBSETS
    block_q = 1
    if apart == 0:
        # A row a block: its q is asked for before the sequence is known that it belongs to.
        x = query_lines(q, block, 1, group, kv_head, q_row, q_head, HEAD, WIDTH, ROWS, MEMBERS)
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, block, 1, 0)
        block_index = block - start_row
        first_row = block
    else:
        block_q = ROWS // group
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, block, block_q, 1)
        block_index = (block - start_row // block_q - seq) * block_q
        first_row = start_row + block_index
        rows = tl.minimum(tl.where(seq == n_seqs - 1, tokens - start_row, q_len) - block_index, block_q)
        x = query_lines(q, first_row, rows, group, kv_head, q_row, q_head, HEAD, WIDTH, ROWS, MEMBERS)
    # Rows behind the last sequence (padding of a captured graph) are the last sequence's to zero.
    owned = tl.where(seq == n_seqs - 1, tokens - start_row, q_len)
    if block_index >= owned:
        return
    rows = tl.minimum(owned - block_index, block_q)
    lane = tl.arange(0, ROWS) % MEMBERS
    index = block_index + lane // group
    store_ok = lane < rows * group
    mine = store_ok & (index < q_len)
    position = seq_len - q_len + index
    range_row = ranges + seq.to(tl.int64) * (2 * RANGES)
    first, last = row_bounds(position, mine, seq, seq_len, window, causal_flags, CAUSAL, WINDOW)
    begin, end, all_begin, all_end = block_bounds(first, last, position, mine, seq_len, range_row, RANGES)
    # Rows that are only to be zeroed see nothing: beside one, every tile is masked.
    all_end = tl.min(tl.where(store_ok, last, all_end), 0)
    if not SINGLE:
        begin, end = split_bounds(split, splits, chunk, begin, end, TILE)
        if (split > 0) & (begin >= end):
            # In a batch of unlike lengths most splits of a short sequence: gone before q is rotated.
            row = (first_row + lane // group).to(tl.int64)
            head = kv_head * group + lane % group
            gone = partial_lse + ((row * (tl.num_programs(1) * group) + head) * splits + split) * 2
            tl.store(gone, tl.full([ROWS], -float("inf"), tl.float32), mask=store_ok)
            tl.store(gone + 1, tl.zeros([ROWS], tl.float32), mask=store_ok)
            return
    whole = begin + tl.cdiv(tl.maximum(all_begin - begin, 0), TILE) * TILE
    whole_end = whole + tl.maximum(tl.minimum(all_end, end) - whole, 0) // TILE * TILE
    page_row = page_table + seq.to(tl.int64) * table_row
    attend_keys(
        x, out, lse, partial_out, partial_lse, page_row, first_row, rows, group, kv_head,
        begin, end, whole, whole_end, first, last, position, splits, split, split == 0,
        has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
        k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
        k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
        HEAD, WIDTH, BLOCK, LEVELS, ROWS, TILE, PAGE, ALIGN, V_BYTE, STAGES, SINGLE,
        WINDOW, SOFTCAP, SINKS, ALIBI, RANGES, SUBSETS, WORDS,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["tokens", "n_seqs", "group", "apart", "splits", "chunk", "has_lse", "table_row", "window"]
)
def attend_share(
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
    ALIBI: tl.constexpr, RANGES: tl.constexpr, COMPUTE: tl.constexpr, SUBSETS: tl.constexpr,
    WORDS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """An equal share of all keys of a batch with at most a row a sequence: part of a long context, or many short ones.

    Takes the arguments of `attend`; no window, prefix ranges or sinks. Grid (programs, kv_heads). What share p finds
    of row r stands in place p + r of the workspace (places, q_heads, ...): a share begins where the one before ends,
    so that no two want one place.
    """
    tl.static_assert(not SINGLE and not WINDOW and not SINKS and RANGES == 0)
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
    let_dependents_start()
    units, _ = units_of(cu_q, seq_lens, tokens, n_seqs, TILE, MANY)
    share = tl.cdiv(tl.sum(units, 0), tl.num_programs(0))
    at = program * share
    until = tl.minimum(at + share, tl.sum(units, 0))
    first_row, before = row_at(units, at, MANY)
    last_row, _ = row_at(units, until - 1, MANY)
    MEMBERS: tl.constexpr = ROWS // SUBSETS
    lane = tl.arange(0, ROWS) % MEMBERS
    for row in range(first_row, last_row + 1):
        x = query_lines(q, row, 1, group, kv_head, q_row, q_head, HEAD, WIDTH, ROWS, MEMBERS)
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, row, 1, 0)
        seq_len = tl.where(row - start_row < q_len, seq_len, 0)
        tiles = tl.cdiv(seq_len, TILE)
        lead = tl.where(tiles > 0, units_of_start(TILE), 0)
        # The compiler must see a multiple of 16.
        begin = tl.maximum(at - before - lead, 0) * TILE // 16 * 16
        position = seq_len - q_len + row - start_row + 0 * lane
        first, last = row_bounds(position, lane < group, seq, seq_len, 0, causal_flags, CAUSAL, False)
        share_end = tl.minimum(until - before - lead, tiles) * TILE
        # The join expects a result of every share that holds keys of the sequence, whether this row sees them or not.
        if begin < share_end:
            end = tl.minimum(share_end, tl.max(last, 0))
            whole_end = begin + tl.maximum(end - begin, 0) // TILE * TILE
            page_row = page_table + seq.to(tl.int64) * table_row
            range_row = ranges
            q_heads = tl.num_programs(1) * group
            attend_keys(
                x, out, lse, partial_out, partial_lse, page_row, row, 1, group, kv_head,
                begin, end, begin, whole_end, first, last, position, 1, program * q_heads, False,
                has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
                k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
                k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
                HEAD, WIDTH, BLOCK, LEVELS, ROWS, TILE, PAGE, ALIGN, V_BYTE, STAGES, False,
                False, SOFTCAP, False, ALIBI, 0, SUBSETS, WORDS,
            )  # fmt: skip
        before += tiles + lead


DECODE = Joined(attend, attend_share)
