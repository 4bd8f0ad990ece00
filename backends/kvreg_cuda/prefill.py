"""Prefill over rows that were laid out first (kvreg_cuda.laying_out), in tiles that the card copies by descriptor.

One kernel for all modes, since what is laid out are values, of int4 in their rotated form: q is rotated before and the
result rotated back. Blocks of the latest queries, which see most keys, begin first, so that none ends late.

    score = (q / a . k_rows[t]) * a * scale * log2(e) * (unit_k, or s_k[t] of int4)
    out   = sum_t exp2(score - maximum + LIFT) * v_rows[t] / total * unit_v

Packed modes meet k_rows in fp16, under a factor a row that brings q's largest magnitude between 1 and 2: a power of
two, which is exact, but of int4, whose rotated q fp16 rounds anyway, the one that makes that rounding least. bf16
keeps its own range and needs none. Weights pass through the type of v_rows: LIFT moves fp16's least weights, which
have few bits, from 2**-14 to 2**-22 of the largest.
"""

import triton
import triton.language as tl

from kvreg_cuda.laying_out import PAD, unit_of
from kvreg_cuda.paging import is_laid_out
from kvreg_cuda.unit_rotation import EXACT_TYPES, SIDE, lines, load_lines, rotated, turned
from kvreg_triton.attend_rows import load_query
from kvreg_triton.masks import LOG2E, adjusted, block_bounds, row_bounds, with_sink
from kvreg_triton.paging import block_sequence
from kvreg_triton.rotation import signs
from kvreg_triton.scales import exponents

LIFT = tl.constexpr(8.0)
"""Powers of two that fp16 has left above a weight of 1 (2**15), less 7 for what float32 loses of scores up to 1e8."""

FINEST = tl.constexpr(2 - 2**-10)
"""Largest fp16 below 2: where the steps of [1, 2) are the smallest share of a value."""
LEAST = tl.constexpr(2.0**-100)
"""Largest magnitudes below this count as it, which keeps FINEST / largest finite; their scores are 0 in float32."""


@triton.jit
def in_range(y, COMPUTE: tl.constexpr):
    """Divide rows y (ROWS, WIDTH) float32 by a power of two each that leaves a largest magnitude in [1, 2).

    Returns them in COMPUTE, and the powers (ROWS,) float32.
    """
    power, inverse = exponents(tl.max(tl.abs(y), 1))
    return (y * inverse[:, None]).to(COMPUTE), tl.exp2(power)


@triton.jit
def as_fine_as_can_be(y, COMPUTE: tl.constexpr):
    """Do what `in_range` does, for rows that COMPUTE rounds anyway, with largest magnitudes of FINEST."""
    largest = tl.maximum(tl.max(tl.abs(y), 1), LEAST)
    return (y * (1.0 / largest * FINEST)[:, None]).to(COMPUTE), largest * (1.0 / FINEST)


@triton.jit
def rotated_back(y, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Return D (H y) / BLOCK of y (ROWS, WIDTH) float32 of magnitudes below 2**16, which two fp16 hold to 22 bits."""
    GROUPS: tl.constexpr = WIDTH // SIDE
    x = tl.reshape(tl.permute(tl.reshape(y, [ROWS, GROUPS, SIDE]), (1, 0, 2)), [GROUPS * ROWS, SIDE])
    # What is turned twice is not: `rotated` turns its rows first.
    if EXACT_TYPES:
        high = x.to(tl.float16)
        low = (x - high.to(tl.float32)).to(tl.float16)
        z = rotated(turned(high, ROWS, WIDTH, BLOCK), ROWS, WIDTH, BLOCK, LEVELS)
        z += rotated(turned(low, ROWS, WIDTH, BLOCK), ROWS, WIDTH, BLOCK, LEVELS)
    else:
        z = rotated(turned(x, ROWS, WIDTH, BLOCK), ROWS, WIDTH, BLOCK, LEVELS)
    return z * signs(WIDTH, BLOCK)[None, :] * (1.0 / BLOCK)


@triton.jit
def attend_tile(
    query, scale, lift, acc, top, total, k_rows, v_rows, k_scales, spoiled, first_row, begin, end,
    first, last, position, softcap, slope, range_row,
    K_SCALED: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    RANGES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of (ROWS,) rows; `scale` (ROWS,) is not negative."""
    at = first_row + begin
    score = tl.dot(query, tl.trans(k_rows.load([at, 0])), out_dtype=tl.float32)
    if K_SCALED:
        score *= tl.load(k_scales + at + tl.arange(0, TILE))[None, :]
    PLAIN: tl.constexpr = not (MASKED or SOFTCAP or ALIBI)
    if PLAIN:
        # The scale meets the maximum alone; in the exponent it is part of one multiply-add.
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
    else:
        tokens = begin + tl.arange(0, TILE)
        score, seen = adjusted(
            score * scale[:, None], tokens, first, tl.minimum(last, end), position, end, softcap, slope, range_row,
            SOFTCAP, ALIBI, RANGES, MASKED,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(score, 1))
    # A row that has seen no token yet keeps -inf; subtracting 0 there gives exp2(-inf) = 0 instead of NaN.
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    if PLAIN:
        weight = tl.exp2(score * scale[:, None] - (base - lift)[:, None])
    else:
        weight = tl.exp2(score - (base - lift)[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weight, 1)
    values = v_rows.load([at, 0])
    acc = acc * fade[:, None]
    if MASKED:
        # What is not finite must not reach the rows that do not see it, 0 * nan being nan: its row is left out of the
        # product, and the rows that do see it become nan.
        faulty = tl.load(spoiled + at + tl.arange(0, TILE))
        if tl.max(faulty, 0) > 0.0:
            acc = tl.where((tl.max(tl.where(seen, faulty[None, :], 0.0), 1) > 0.0)[:, None], float("nan"), acc)
            values = tl.where((faulty > 0.0)[:, None], 0.0, values).to(VALUES)
    acc = tl.dot(weight.to(VALUES), values, acc, out_dtype=tl.float32)
    return acc, new_top, total


@triton.jit(
    do_not_specialize=[
        "tokens", "n_seqs", "group", "kv_heads", "seqs", "first_seq", "first_head", "room", "least", "has_lse",
        "window",
    ]
)  # fmt: skip
def attend(
    q, out, lse, k_rows, v_rows, k_scales, spoiled, peaks, seq_lens, cu_q, tokens, n_seqs, group, kv_heads, seqs,
    first_seq, first_head, room, least, has_lse, scale, q_row, q_head, out_row, out_head,
    causal_flags, window, softcap, sinks, slopes, ranges, tensor_scales,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, TENSOR_SCALED: tl.constexpr, SPAN: tl.constexpr, ROTATED: tl.constexpr,
    RANGED: tl.constexpr, COMPUTE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """ROWS // group query tokens of one sequence, all heads of one KV head, over whole contexts.

    `k_rows` and `v_rows` are descriptors of tiles (TILE, WIDTH). Grid (blocks, heads); a turn's
    heads and its `seqs` sequences begin with the first ones.
    """
    block_q = ROWS // group
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    laid = tl.program_id(1)
    kv_head = laid + first_head
    seq = block_sequence(cu_q, n_seqs, block, block_q, 1)
    if (seq < first_seq) | (seq >= first_seq + seqs):
        return
    start_row = tl.load(cu_q + seq)
    q_len = tl.load(cu_q + seq + 1) - start_row
    seq_len = tl.load(seq_lens + seq)
    # Rows behind the last sequence (padding of a captured graph) are the last sequence's to zero.
    owned = tl.where(seq == n_seqs - 1, tokens - start_row, q_len)
    block_index = (block - start_row // block_q - seq) * block_q
    if (block_index >= owned) | (not is_laid_out(q_len, seq_len, least, room - PAD)):
        return
    lane = tl.arange(0, ROWS)
    index = block_index + lane // group
    store_ok = (lane < block_q * group) & (index < owned)
    mine = store_ok & (index < q_len)
    row = (start_row + index).to(tl.int64)
    head = kv_head * group + lane % group

    position = seq_len - q_len + index
    range_row = ranges + seq.to(tl.int64) * (2 * RANGES)
    first, last = row_bounds(position, mine, seq, seq_len, window, causal_flags, CAUSAL, WINDOW)
    begin, end, all_begin, all_end = block_bounds(first, last, position, mine, seq_len, range_row, RANGES)
    # Rows that are only to be zeroed see nothing: beside one, every tile is masked.
    all_end = tl.min(tl.where(store_ok, last, all_end), 0)
    whole = begin + tl.cdiv(tl.maximum(all_begin - begin, 0), TILE) * TILE
    whole_end = whole + tl.maximum(tl.minimum(all_end, end) - whole, 0) // TILE * TILE

    from_q = q + (row * q_row + head * q_head)[:, None]
    place = laid * seqs + seq - first_seq
    k_unit, _ = unit_of(tl.load(peaks + place), SPAN)
    v_unit, _ = unit_of(tl.load(peaks + tl.num_programs(1) * seqs + place), SPAN)
    row_scale = tl.zeros([ROWS], tl.float32) + scale * LOG2E / BLOCK
    if not ROTATED:
        row_scale *= k_unit
    if TENSOR_SCALED:
        row_scale *= tl.load(tensor_scales)
        v_unit *= tl.load(tensor_scales + 1)
    lift = 0.0
    if ROTATED:
        line = lines(ROWS, WIDTH)
        token = block_index + line // group
        line_q = q + (start_row + token).to(tl.int64) * q_row + (kv_head * group + line % group) * q_head
        x = load_lines(line_q, (line < block_q * group) & (token < q_len), HEAD, ROWS, WIDTH)
        query, factor = as_fine_as_can_be(rotated(x, ROWS, WIDTH, BLOCK, LEVELS), COMPUTE)
    elif RANGED:
        query, factor = in_range(load_query(from_q, mine, HEAD, WIDTH, tl.float32), COMPUTE)
    else:
        query = load_query(from_q, mine, HEAD, WIDTH, COMPUTE)
    if RANGED:
        row_scale *= factor
        lift = LIFT
    # A negative scale turns q round, which is exact: maxima of products then are maxima of scores.
    query = tl.where((row_scale < 0.0)[:, None], -query, query)
    row_scale = tl.abs(row_scale)
    softcap = softcap * LOG2E
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head, mask=mine, other=0.0) * LOG2E
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    first_row = place * room
    # The loops at the edges are short; pipelining them would only cost registers.
    if WINDOW or RANGES > 0:
        for start in tl.range(begin, tl.minimum(whole, end), TILE, num_stages=1):
            acc, top, total = attend_tile(
                query, row_scale, lift, acc, top, total, k_rows, v_rows, k_scales, spoiled, first_row, start, end,
                first, last, position, softcap, slope, range_row,
                ROTATED, TILE, True, SOFTCAP, ALIBI, RANGES, VALUES,
            )  # fmt: skip
    for start in tl.range(whole, whole_end, TILE, num_stages=STAGES):
        acc, top, total = attend_tile(
            query, row_scale, lift, acc, top, total, k_rows, v_rows, k_scales, spoiled, first_row, start, end,
            first, last, position, softcap, slope, range_row,
            ROTATED, TILE, False, SOFTCAP, ALIBI, RANGES, VALUES,
        )  # fmt: skip
    for start in tl.range(whole_end, end, TILE, num_stages=1):
        acc, top, total = attend_tile(
            query, row_scale, lift, acc, top, total, k_rows, v_rows, k_scales, spoiled, first_row, start, end,
            first, last, position, softcap, slope, range_row,
            ROTATED, TILE, True, SOFTCAP, ALIBI, RANGES, VALUES,
        )  # fmt: skip
    total *= tl.exp2(-lift)
    acc *= v_unit * tl.exp2(-lift)
    if SINKS:
        sink = tl.load(sinks + head, mask=store_ok, other=-float("inf")) * LOG2E
        top, total, fade = with_sink(top, total, sink)
        acc *= fade[:, None]

    channel = tl.arange(0, WIDTH)
    y = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    if ROTATED:
        y = rotated_back(y, ROWS, WIDTH, BLOCK, LEVELS)
    to = out + (row * out_row + head * out_head)[:, None] + channel[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=store_ok[:, None] & (channel < HEAD)[None, :])
    if has_lse:
        tl.store(lse + row * (kv_heads * group) + head, (top + tl.log2(total)) / LOG2E, mask=store_ok)
