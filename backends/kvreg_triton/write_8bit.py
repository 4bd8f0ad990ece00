"""Quantize K and V rows to 8 bits and store them: int8 or fp8 with a scale a row, or fp8 under one scale a tensor.

    row scales      s = max(max|x| / qmax, 1e-6);  code = x / s, rounded half away from zero (int8) or to the nearest
                    even (fp8), clamped to +-qmax
    tensor scale    code = x / scale, clamped to +-qmax: what does not fit saturates instead of becoming NaN

A row with a value that is not finite gets codes of 0 and a NaN scale; under a tensor scale the value becomes NaN.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import Write
from kvreg_triton.paging import aligned
from kvreg_triton.write_int4 import LEAST_SCALE, round_half_away


@triton.jit
def row_codes(x, QMAX: tl.constexpr, INTEGER: tl.constexpr):
    """Return (codes in float32, scale) of rows (ROWS, width)."""
    broken = tl.max(tl.where(tl.abs(x) < float("inf"), 0.0, 1.0), 1) > 0.0
    x = tl.where(broken[:, None], 0.0, x)
    scale = tl.maximum(tl.max(tl.abs(x), 1) / QMAX, LEAST_SCALE)
    code = x / scale[:, None]
    if INTEGER:
        code = round_half_away(code)
    code = tl.minimum(tl.maximum(code, -QMAX), QMAX)
    return code, tl.where(broken, float("nan"), scale)


@triton.jit
def rounded_to_e4m3(code, LEAST: tl.constexpr):
    """Round float32 within +-qmax to the nearest e4m3 value, ties to even; LEAST is the step of its subnormals.

    Conversions differ in rounding between platforms; of a value that e4m3 holds, none can be wrong.
    """
    bits = code.to(tl.int32, bitcast=True)
    # Three of 23 mantissa bits stay: half of the last place, less one where that place is even, carries upwards.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF).to(tl.float32, bitcast=True)
    # 1.5 * 2^23 steps: float32 keeps nothing below one step next to that number.
    magic: tl.constexpr = 12582912.0 * LEAST
    return tl.where(tl.abs(code) < 8.0 * LEAST, (code + magic) - magic, normal)


@triton.jit
def tensor_codes(x, scale, QMAX: tl.constexpr):
    """Return saturated codes in float32; NaN and infinities become NaN, a quotient too large for float32 saturates."""
    clamped = tl.minimum(tl.maximum(x / scale, -QMAX), QMAX)
    return tl.where(tl.abs(x) < float("inf"), clamped, float("nan"))


@triton.jit(do_not_specialize=["n_rows"])
def write(
    k_in, v_in, slots, n_rows, k_in_row, k_in_head, v_in_row, v_in_head,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head, tensor_scales,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr,
    SCALED: tl.constexpr, QMAX: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one KV head, K (last grid axis 0) or V (1). Grid (ceil(n_rows / ROWS), kv_heads, 2)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    slot = tl.load(slots + row, mask=row < n_rows, other=-1).to(tl.int64)
    keep = slot >= 0
    page = slot // PAGE
    slot = slot % PAGE
    if tl.program_id(2) == 0:
        source = k_in + row.to(tl.int64) * k_in_row + head * k_in_head
        target = k + page * aligned(k_page, ALIGN) + slot * aligned(k_slot, ALIGN)
        target += head * aligned(k_head, ALIGN)
        scale_target = k_scale + page * ks_page + slot * ks_slot + head * ks_head
    else:
        source = v_in + row.to(tl.int64) * v_in_row + head * v_in_head
        target = v + page * aligned(v_page, ALIGN) + slot * aligned(v_slot, ALIGN)
        target += head * aligned(v_head, ALIGN)
        scale_target = v_scale + page * vs_page + slot * vs_slot + head * vs_head
    channel = tl.arange(0, WIDTH)
    inside = keep[:, None] & (channel < HEAD)[None, :]
    x = tl.load(source[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        code, scale = row_codes(x, QMAX, k.dtype.element_ty == tl.int8)
        tl.store(scale_target, scale, mask=keep)
    else:
        code = tensor_codes(x, tl.load(tensor_scales + tl.program_id(2)), QMAX)
    if k.dtype.element_ty != tl.int8:
        # The least e4m3fn step is 2^-9; e4m3fnuz (bias 8) has half of it and stores up to 224.
        finite = rounded_to_e4m3(code, 0.001953125 if QMAX == 448.0 else 0.0009765625)
        code = tl.where(code == code, finite, code)
    tl.store(target[:, None] + channel[None, :], code.to(k.dtype.element_ty), mask=inside)


WRITE = Write(write)
