"""Stored rows laid out for prefill: unpacked once, one behind the other, so that every block of queries just copies.

Of a sequence of many query rows each block reads every row of its context. What a cache stores (codes of 4 or 8 bits
in pages) would be found, loaded byte by byte and converted again in each of them; here that is done once a call:

    k_rows, v_rows   (heads * seqs * room, WIDTH) 16-bit floats, the channels behind the head size 0
    k_scales         (heads * seqs * room,) float32: the row scales of int4's K
    spoiled          (heads * seqs * room,) float32: 1 where a row of V holds what is not finite, else 0
    peaks            (2, heads * seqs) int32: the largest row scale of K and of V, as bits; 0 without row scales

Row (head * seqs + seq) * room + t holds token t, head and sequence counted from the first of a turn. Without row
scales a row is what is stored: bf16, fp16, or codes of fp8, which are exact in fp16. With row scales it is the value
in fp16, in units of the sequence's largest scale: `unit_of` takes that to a power of two for which no value passes
2**15. A value is then rounded once, to 11 bits, as long as its row's scale is more than 2**-19 of the largest one (the
smallest code of it; the largest codes down to 2**-28), and to steps of 2**-39 of the largest value below. The scales
of a model's rows lie within a few powers of two.

K of int4 stays as codes less their zero point (-15 to 15), which are exact, beside their scales: q is rounded there
after its rotation, and with a second rounding scores of inputs with one channel 30 times the others lost twice as much
(e of 1.15e-2 on an H200, where 1e-2 is allowed).

Behind a sequence's last token come PAD rows of zeros, which a tile that begins before it may read. Sequences of fewer
than `least` query rows are left out: so little is read of them that pages serve better.
"""

import triton
import triton.language as tl

from kvreg_cuda.paging import is_laid_out
from kvreg_triton.attend_int4 import centred, scales_and_zeros
from kvreg_triton.paging import aligned, slots_of, value_rows
from kvreg_triton.scales import exponents

PAD = tl.constexpr(128)
"""Zero rows behind a sequence: the largest tile that attention takes."""


@triton.jit
def first_needed(seq_len, q_len, window, WINDOW: tl.constexpr):
    """Return the first token that a query row of a sequence may see; what lies before may have lost its page."""
    needed = 0
    if WINDOW:
        needed = tl.maximum(seq_len - q_len - window + 1, 0)
    return needed


@triton.jit
def unit_of(peak, SPAN: tl.constexpr):
    """Return (unit, 1 / unit) float32 of rows whose largest scale has the bits `peak`; (1, 1) for 0.

    A power of two, so that to divide by it is exact; scales up to the largest are then below 2 * SPAN.
    """
    power, inverse = exponents(peak.to(tl.float32, bitcast=True))
    unit = tl.where(peak == 0, 1.0, tl.exp2(power) / SPAN)
    return unit, tl.where(peak == 0, 1.0, inverse * SPAN)


@triton.jit(do_not_specialize=["seqs", "first_seq", "first_head", "room", "least", "window", "table_row"])
def find_peaks(
    peaks, page_table, seq_lens, cu_q, seqs, first_seq, first_head, room, least, window, table_row,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    TILE: tl.constexpr, PAGE: tl.constexpr, ZERO_POINTS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The largest scales among TILE tokens of one sequence and KV head. Grid (tiles, seqs, heads)."""
    seq = tl.program_id(1) + first_seq
    head = tl.program_id(2)
    q_len = tl.load(cu_q + seq + 1) - tl.load(cu_q + seq)
    seq_len = tl.load(seq_lens + seq)
    begin = tl.program_id(0) * TILE
    needed = first_needed(seq_len, q_len, window, WINDOW)
    if (not is_laid_out(q_len, seq_len, least, room - PAD)) | (begin >= seq_len) | (begin + TILE <= needed):
        return
    tokens = begin + tl.arange(0, TILE)
    valid = (tokens < seq_len) & (tokens >= needed)
    page, slot = slots_of(page_table + seq.to(tl.int64) * table_row, tokens, valid, PAGE)
    from_k = k_scale + (head + first_head) * ks_head + page * ks_page + slot * ks_slot
    from_v = v_scale + (head + first_head) * vs_head + page * vs_page + slot * vs_slot
    place = head * seqs + seq - first_seq
    tl.atomic_max(peaks + place, largest(from_k, valid, ZERO_POINTS), sem="relaxed")
    tl.atomic_max(peaks + tl.num_programs(2) * seqs + place, largest(from_v, valid, ZERO_POINTS), sem="relaxed")


@triton.jit
def largest(pointers, valid, ZERO_POINTS: tl.constexpr):
    """Return the bits of the largest finite scale, which order as its magnitude does."""
    if ZERO_POINTS:
        scales, _ = scales_and_zeros(pointers, valid)
    else:
        scales = tl.load(pointers, mask=valid, other=0.0)
    scales = tl.abs(scales)
    return tl.max(tl.where(valid & (scales < float("inf")), scales, 0.0), 0).to(tl.int32, bitcast=True)


@triton.jit
def lay_out_side(
    rows, values, scales, peak, first, tokens, room,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, SCALED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Store values (TILE, WIDTH) times their scales (TILE,) in units of `unit_of`, zeros behind HEAD channels."""
    channel = tl.arange(0, WIDTH)
    if SCALED:
        _, inverse = unit_of(tl.load(peak), SPAN)
        values = values.to(tl.float32) * (scales * inverse)[:, None]
    # Codes that no row holds count as zero points, and of scales that are not finite they would be nan.
    values = tl.where((channel < HEAD)[None, :], values, 0.0)
    to = first * WIDTH + tl.arange(0, TILE)[:, None] * WIDTH + channel[None, :]
    tl.store(rows + to, values.to(rows.dtype.element_ty), mask=(tokens < room)[:, None] & (channel < WIDTH)[None, :])


@triton.jit
def unpacked(codes, zeros, valid, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Return code - zero point of packed bytes (TILE, WIDTH / 2) as (TILE, WIDTH) float32; 0 where not `valid`."""
    low, high = centred(codes, tl.float32)
    rows = tl.reshape(tl.join(low - zeros[:, None], high - zeros[:, None]), [TILE, WIDTH])
    return tl.where(valid[:, None], rows, 0.0)


@triton.jit(do_not_specialize=["seqs", "first_seq", "first_head", "room", "least", "window", "table_row"])
def lay_out(
    k_rows, v_rows, k_scales, spoiled, peaks, page_table, seq_lens, cu_q, seqs, first_seq, first_head, room, least,
    window, table_row, k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr,
    V_BYTE: tl.constexpr, PACKED: tl.constexpr, SCALED: tl.constexpr, SPAN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """TILE tokens of one sequence and KV head. Grid (tiles, seqs, heads)."""
    seq = tl.program_id(1) + first_seq
    head = tl.program_id(2)
    q_len = tl.load(cu_q + seq + 1) - tl.load(cu_q + seq)
    seq_len = tl.load(seq_lens + seq)
    begin = tl.program_id(0) * TILE
    needed = first_needed(seq_len, q_len, window, WINDOW)
    if (not is_laid_out(q_len, seq_len, least, room - PAD)) | (begin >= seq_len + PAD) | (begin + TILE <= needed):
        return
    tokens = begin + tl.arange(0, TILE)
    valid = (tokens < seq_len) & (tokens >= needed)
    place = head * seqs + seq - first_seq
    first = place.to(tl.int64) * room + begin
    k += (head + first_head) * aligned(k_head, ALIGN)
    v += (head + first_head) * aligned(v_head, ALIGN)
    page, slot = slots_of(page_table + seq.to(tl.int64) * table_row, tokens, valid, PAGE)
    k_at = page * aligned(k_page, ALIGN) + slot * aligned(k_slot, ALIGN)
    v_page = aligned(v_page, ALIGN)
    if V_BYTE == 1:
        v_slot = aligned(v_slot, ALIGN)
    from_k = k_scale + (head + first_head) * ks_head + page * ks_page + slot * ks_slot
    from_v = v_scale + (head + first_head) * vs_head + page * vs_page + slot * vs_slot
    peak = peaks + place
    v_peak = peak + tl.num_programs(2) * seqs
    if PACKED:
        byte = tl.arange(0, WIDTH // 2)
        inside = valid[:, None] & (byte < HEAD // 2)[None, :]
        s_k, zeros = scales_and_zeros(from_k, valid)
        codes = tl.load(k + k_at[:, None] + byte[None, :], mask=inside, other=0)
        keys = unpacked(codes, zeros, valid, TILE, WIDTH)
        lay_out_side(k_rows, keys, s_k, peak, first, tokens, room, HEAD, WIDTH, TILE, False, SPAN)
        tl.store(k_scales + first + tl.arange(0, TILE), s_k, mask=tokens < room)
        s_v, zeros = scales_and_zeros(from_v, valid)
        from_values = value_rows(v, page, slot, v_page, v_slot, byte, V_BYTE)
        if V_BYTE == 1:
            codes = tl.load(from_values, mask=inside, other=0)
        else:
            codes = tl.trans(tl.load(from_values, mask=valid[None, :] & (byte < HEAD // 2)[:, None], other=0))
        values = unpacked(codes, zeros, valid, TILE, WIDTH)
        lay_out_side(v_rows, values, s_v, v_peak, first, tokens, room, HEAD, WIDTH, TILE, SCALED, SPAN)
    else:
        channel = tl.arange(0, WIDTH)
        inside = valid[:, None] & (channel < HEAD)[None, :]
        s_k = tl.load(from_k, mask=valid & SCALED, other=1.0)
        s_v = tl.load(from_v, mask=valid & SCALED, other=1.0)
        keys = tl.load(k + k_at[:, None] + channel[None, :], mask=inside, other=0.0)
        lay_out_side(k_rows, keys, s_k, peak, first, tokens, room, HEAD, WIDTH, TILE, SCALED, SPAN)
        v_at = page * v_page + slot * v_slot
        values = tl.load(v + v_at[:, None] + channel[None, :], mask=inside, other=0.0)
        lay_out_side(v_rows, values, s_v, v_peak, first, tokens, room, HEAD, WIDTH, TILE, SCALED, SPAN)
    if SCALED:
        worst = tl.where(tl.abs(s_v) < float("inf"), 0.0, 1.0)
    else:
        worst = tl.max(tl.where(tl.abs(values.to(tl.float32)) < float("inf"), 0.0, 1.0), 1)
    tl.store(spoiled + first + tl.arange(0, TILE), worst, mask=tokens < room)
