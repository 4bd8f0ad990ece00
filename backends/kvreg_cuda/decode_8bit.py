"""Decode over a cache of 8-bit codes in pairs: two neighbouring channels of a row are loaded as one 16-bit value.

The cache is that of kvreg_triton.attend_rows, and so are its formulas. Matrix operands have 16 bits, and what moves
them from shared memory to registers, transposed for V, moves units of 16 bits: single bytes would be gathered and
converted one by one, in 7 instructions a value on an H200 instead of 3. Even and odd channels meet q, and make the
result, apart from each other:

    score[t] = (q_even . k_even[t] + q_odd . k_odd[t]) * s_k[t]
    code     = fp16 from a permutation of bytes: int8 as 1152 + n, less 1152; e4m3 by the conversion of sm_89

q meets the codes in fp16, scaled by a power of two so that its largest magnitude lies in [1, 2): bf16 values of up to
2**-14 of it are kept as they are.

Longer than other modules: a kernel family stays in one file, so that a change stales the traces of this one alone.
"""

import triton
import triton.language as tl

from kvreg_cuda.joining_rows import STARTED, JoinedRows
from kvreg_cuda.launching import let_dependents_start
from kvreg_cuda.paging import place_of, sequence_of
from kvreg_cuda.shares import row_at, units_of, units_of_start
from kvreg_triton.attend_rows import load_query, row_scales
from kvreg_triton.launch import INTERPRETED
from kvreg_triton.masks import LOG2E, adjusted, block_bounds, row_bounds, with_sink
from kvreg_triton.paging import aligned, split_bounds
from kvreg_triton.scales import EXPONENT, exponents

PACKED = tl.constexpr(not INTERPRETED)
"""Two pairs at a time by inline PTX, which the interpreter cannot run."""


@triton.jit
def even_codes(pairs, CODES: tl.constexpr, VALUES: tl.constexpr):
    """Return the low bytes of int16 pairs as VALUES; the bytes are of type CODES, int8 or float8e4nv."""
    if not PACKED:
        return (pairs & 255).to(tl.uint8).to(CODES, bitcast=True).to(VALUES)
    if CODES == tl.int8:  # noqa: SIM300 (CODES is the variable)
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t, c; prmt.b32 t, $1, 0, 0x4240; xor.b32 t, t, 0x64806480; "
            "mov.b32 c, 0xE480E480; add.rn.f16x2 $0, t, c; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; .reg .b16 l, h; prmt.b32 t, $1, 0, 0x4420; mov.b32 {l, h}, t; cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def odd_codes(pairs, CODES: tl.constexpr, VALUES: tl.constexpr):
    """Return the high bytes, see `even_codes`."""
    if not PACKED:
        return ((pairs >> 8) & 255).to(tl.uint8).to(CODES, bitcast=True).to(VALUES)
    if CODES == tl.int8:  # noqa: SIM300 (CODES is the variable)
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t, c; prmt.b32 t, $1, 0, 0x4341; xor.b32 t, t, 0x64806480; "
            "mov.b32 c, 0xE480E480; add.rn.f16x2 $0, t, c; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; .reg .b16 l, h; prmt.b32 t, $1, 0, 0x4431; mov.b32 {l, h}, t; cvt.rn.f16x2.e4m3x2 $0, l; }",
            "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def row_query(
    q, first_row, rows, group, head, q_row, q_head, HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Ask for the q of `rows` query tokens, (ROWS, WIDTH) float32: it comes while lengths and pages are looked up."""
    lane = tl.arange(0, ROWS)
    row = (first_row + lane // group).to(tl.int64)
    return load_query(q + (row * q_row + head * q_head)[:, None], lane < rows * group, HEAD, WIDTH, tl.float32)


@triton.jit
def paired_query(query, ROWS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr):
    """Return the even and odd channels (ROWS, WIDTH / 2) of float32 q rows, scaled, and what each was divided by."""
    largest = tl.max(tl.abs(query), 1)
    unit = (largest.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True)
    unit = tl.where(unit == 0.0, 1.0, unit)
    even, odd = tl.split(tl.reshape(query * (1.0 / unit)[:, None], [ROWS, WIDTH // 2, 2]))
    return even.to(VALUES), odd.to(VALUES), unit


@triton.jit
def without_spoiled(values, seen, acc, VALUES: tl.constexpr):
    """Take what is not finite out of (TILE, HALF) values; rows of (ROWS, HALF) results that see it become NaN."""
    finite = tl.abs(values.to(tl.float32)) < float("inf")
    spoiled = tl.max(tl.where(finite, 0.0, 1.0), 1)
    acc = tl.where((tl.max(tl.where(seen, spoiled[None, :], 0.0), 1) > 0.0)[:, None], float("nan"), acc)
    return tl.where(finite, values, 0.0).to(VALUES), acc


@triton.jit
def attend_tile(
    even, odd, scale, acc_even, acc_odd, top, total, k, v, k_scale, v_scale, page_row, begin, end,
    k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
    first, last, position, softcap, slope, range_row,
    HEAD: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr, SCALED: tl.constexpr, CODES: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """Take tokens [begin, begin + TILE) into the running softmax of (ROWS,) rows. Strides are in pairs."""
    tokens = begin + tl.arange(0, TILE)
    valid = tl.full([TILE], True, tl.int1)
    if MASKED:
        valid = tokens < end
    page, slot = place_of(page_row, tokens, valid, PAGE)
    pair = tl.arange(0, HALF)
    inside = valid[:, None] & (pair < HEAD // 2)[None, :]
    keys = tl.load(k + (page * k_page + slot * k_slot)[:, None] + pair[None, :], mask=inside, other=0)
    score = tl.dot(even, tl.trans(even_codes(keys, CODES, VALUES)), out_dtype=tl.float32)
    score = tl.dot(odd, tl.trans(odd_codes(keys, CODES, VALUES)), score, out_dtype=tl.float32)
    score *= scale[:, None]
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
    values = tl.load(v + (page * v_page + slot * v_slot)[:, None] + pair[None, :], mask=inside, other=0)
    v_even = even_codes(values, CODES, VALUES)
    v_odd = odd_codes(values, CODES, VALUES)
    acc_even = acc_even * fade[:, None]
    acc_odd = acc_odd * fade[:, None]
    if MASKED and not SCALED:
        # The same for a value: it is left out of the product, and the rows that do see it become nan.
        v_even, acc_even = without_spoiled(v_even, seen, acc_even, VALUES)
        v_odd, acc_odd = without_spoiled(v_odd, seen, acc_odd, VALUES)
    weight = weight.to(VALUES)
    acc_even = tl.dot(weight, v_even, acc_even, out_dtype=tl.float32)
    acc_odd = tl.dot(weight, v_odd, acc_odd, out_dtype=tl.float32)
    return acc_even, acc_odd, new_top, total


@triton.jit
def attend_keys(
    query, out, lse, partial_out, partial_lse, page_row, first_row, rows, group, kv_head,
    begin, end, whole, whole_end, first, last, position, splits, split, leads,
    has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr,
    SCALED: tl.constexpr, TENSOR_SCALED: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Attend `rows` query tokens from `first_row`, whose q is `query`, to keys [begin, end); store what comes of it.

    Tiles in [whole, whole_end) are seen by every row whole. Partial results go to (row * q_heads + head) * splits +
    split of the workspace; `leads`: whether a sink is counted here.
    """
    lane = tl.arange(0, ROWS)
    store_ok = lane < rows * group
    row = (first_row + lane // group).to(tl.int64)
    head = kv_head * group + lane % group
    even, odd, unit = paired_query(query, ROWS, WIDTH, VALUES)
    scale = unit * (scale * LOG2E)
    if TENSOR_SCALED:
        scale = scale * tl.load(tensor_scales)
    softcap = softcap * LOG2E
    slope = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head, mask=store_ok, other=0.0) * LOG2E
    acc_even = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    acc_odd = tl.zeros([ROWS, WIDTH // 2], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    CODES: tl.constexpr = k.dtype.element_ty
    # Addresses and strides in pairs; the multiple of what was an argument is lost in the cast.
    k = tl.multiple_of((k + kv_head * aligned(k_head, ALIGN)).to(tl.pointer_type(tl.int16)), ALIGN)
    v = tl.multiple_of((v + kv_head * aligned(v_head, ALIGN)).to(tl.pointer_type(tl.int16)), ALIGN)
    k_page = aligned(k_page, ALIGN) // 2
    k_slot = aligned(k_slot, ALIGN) // 2
    v_page = aligned(v_page, ALIGN) // 2
    v_slot = aligned(v_slot, ALIGN) // 2
    k_scale += kv_head * ks_head
    v_scale += kv_head * vs_head
    # The loops at the edges are short; pipelining them would only cost registers.
    if WINDOW or RANGES > 0:
        for start in tl.range(begin, tl.minimum(whole, end), TILE, num_stages=1):
            acc_even, acc_odd, top, total = attend_tile(
                even, odd, scale, acc_even, acc_odd, top, total, k, v, k_scale, v_scale, page_row, start, end,
                k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
                first, last, position, softcap, slope, range_row,
                HEAD, WIDTH // 2, TILE, PAGE, True, SOFTCAP, ALIBI, RANGES, SCALED, CODES, VALUES,
            )  # fmt: skip
    for start in tl.range(whole, whole_end, TILE, num_stages=STAGES):
        acc_even, acc_odd, top, total = attend_tile(
            even, odd, scale, acc_even, acc_odd, top, total, k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, False, SOFTCAP, ALIBI, RANGES, SCALED, CODES, VALUES,
        )  # fmt: skip
    for start in tl.range(whole_end, end, TILE, num_stages=1):
        acc_even, acc_odd, top, total = attend_tile(
            even, odd, scale, acc_even, acc_odd, top, total, k, v, k_scale, v_scale, page_row, start, end,
            k_page, k_slot, v_page, v_slot, ks_page, ks_slot, vs_page, vs_slot,
            first, last, position, softcap, slope, range_row,
            HEAD, WIDTH // 2, TILE, PAGE, True, SOFTCAP, ALIBI, RANGES, SCALED, CODES, VALUES,
        )  # fmt: skip
    acc = tl.reshape(tl.join(acc_even, acc_odd), [ROWS, WIDTH])
    if TENSOR_SCALED:
        acc *= tl.load(tensor_scales + 1)
    if SINKS:
        sink = tl.load(sinks + head, mask=store_ok, other=-float("inf")) * LOG2E
        top, total, fade = with_sink(top, total, tl.where(leads & (lane >= 0), sink, -float("inf")))
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
        inside = store_ok[:, None] & (channel < tl.where((begin < end) | leads, HEAD, 0))[None, :]
        tl.store(partial_out + part * HEAD + channel[None, :], acc, mask=inside)
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
    let_dependents_start()
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    lane = tl.arange(0, ROWS)
    head = kv_head * group + lane % group
    block_q = 1
    if apart == 0:
        # A row a block: its q is asked for before the sequence is known that it belongs to.
        query = row_query(q, block, 1, group, head, q_row, q_head, HEAD, WIDTH, ROWS)
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, block, 1, 0)
        block_index = block - start_row
        first_row = block
    else:
        block_q = ROWS // group
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, block, block_q, 1)
        block_index = (block - start_row // block_q - seq) * block_q
        first_row = start_row + block_index
        rows = tl.minimum(tl.where(seq == n_seqs - 1, tokens - start_row, q_len) - block_index, block_q)
        query = row_query(q, first_row, rows, group, head, q_row, q_head, HEAD, WIDTH, ROWS)
    # Rows behind the last sequence (padding of a captured graph) are the last sequence's to zero.
    owned = tl.where(seq == n_seqs - 1, tokens - start_row, q_len)
    if block_index >= owned:
        return
    rows = tl.minimum(owned - block_index, block_q)
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
            # In a batch of unlike lengths most splits of a short sequence: gone before q is used.
            row = (first_row + lane // group).to(tl.int64)
            gone = partial_lse + ((row * (tl.num_programs(1) * group) + head) * splits + split) * 2
            tl.store(gone, tl.full([ROWS], -float("inf"), tl.float32), mask=store_ok)
            tl.store(gone + 1, tl.zeros([ROWS], tl.float32), mask=store_ok)
            return
    whole = begin + tl.cdiv(tl.maximum(all_begin - begin, 0), TILE) * TILE
    whole_end = whole + tl.maximum(tl.minimum(all_end, end) - whole, 0) // TILE * TILE
    page_row = page_table + seq.to(tl.int64) * table_row
    attend_keys(
        query, out, lse, partial_out, partial_lse, page_row, first_row, rows, group, kv_head,
        begin, end, whole, whole_end, first, last, position, splits, split, split == 0,
        has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
        k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
        k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
        HEAD, WIDTH, ROWS, TILE, PAGE, ALIGN, STAGES, SINGLE,
        WINDOW, SOFTCAP, SINKS, ALIBI, RANGES, SCALED, TENSOR_SCALED, VALUES,
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
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, STAGES: tl.constexpr, SINGLE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    ALIBI: tl.constexpr, RANGES: tl.constexpr, SCALED: tl.constexpr, TENSOR_SCALED: tl.constexpr,
    COMPUTE: tl.constexpr, VALUES: tl.constexpr, MANY: tl.constexpr,
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
    units, _ = units_of(cu_q, seq_lens, tokens, n_seqs, TILE, MANY, STARTED)
    share = tl.cdiv(tl.sum(units, 0), tl.num_programs(0))
    at = program * share
    until = tl.minimum(at + share, tl.sum(units, 0))
    first_row, before = row_at(units, at, MANY)
    last_row, _ = row_at(units, until - 1, MANY)
    lane = tl.arange(0, ROWS)
    mine = lane < group
    head = kv_head * group + lane % group
    for row in range(first_row, last_row + 1):
        query = row_query(q, row, 1, group, head, q_row, q_head, HEAD, WIDTH, ROWS)
        seq, start_row, q_len, seq_len = sequence_of(cu_q, seq_lens, n_seqs, row, 1, 0)
        seq_len = tl.where(row - start_row < q_len, seq_len, 0)
        tiles = tl.cdiv(seq_len, TILE)
        lead = tl.where(tiles > 0, units_of_start(TILE, STARTED), 0)
        # The compiler must see a multiple of 16.
        begin = tl.maximum(at - before - lead, 0) * TILE // 16 * 16
        position = seq_len - q_len + row - start_row + 0 * lane
        first, last = row_bounds(position, mine, seq, seq_len, 0, causal_flags, CAUSAL, False)
        share_end = tl.minimum(until - before - lead, tiles) * TILE
        if begin < share_end:
            # A row before the last of its sequence may see none of the keys; the join expects its part all the same.
            end = tl.minimum(share_end, tl.max(last, 0))
            whole_end = begin + tl.maximum(end - begin, 0) // TILE * TILE
            page_row = page_table + seq.to(tl.int64) * table_row
            range_row = ranges
            q_heads = tl.num_programs(1) * group
            attend_keys(
                query, out, lse, partial_out, partial_lse, page_row, row, 1, group, kv_head,
                begin, end, begin, whole_end, first, last, position, 1, program * q_heads, False,
                has_lse, scale, out_row, out_head, softcap, sinks, slopes, range_row,
                k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
                k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
                HEAD, WIDTH, ROWS, TILE, PAGE, ALIGN, STAGES, False,
                False, SOFTCAP, False, ALIBI, 0, SCALED, TENSOR_SCALED, VALUES,
            )  # fmt: skip
        before += tiles + lead


DECODE = JoinedRows(attend, attend_share)
