"""Rotate, quantize to int4, pack and store K and V rows in one launch.

A row is rotated in float32 and quantized from there, never rounded to the model dtype in between:

    s = max((max - min) / 15, 1e-6)     max and min over the row and 0, so that a one-sided row does not saturate
    z = round(-min / s)                 0 to 15, kept in the four lowest mantissa bits of the stored s
    code[c] = clamp(round(y[c] / s) + z, 0, 15)    round half away from zero, as vLLM does
    byte[j] = code[2j] | code[2j + 1] << 4

Including 0 in the range is what makes padding lanes harmless too: they hold 0.
"""

import triton
import triton.language as tl

from kvreg_triton.launch import Write
from kvreg_triton.paging import aligned
from kvreg_triton.rotation import hadamard, signs

LEAST_SCALE = tl.constexpr(1e-6)


@triton.jit
def round_half_away(x):
    """Round to the nearest integer, ties away from zero, as vLLM's writer does: floor(|x| + 1/2) with the sign."""
    return tl.where(x >= 0.0, tl.floor(x + 0.5), tl.ceil(x - 0.5))


@triton.jit
def quantize(y):
    """Return codes (rows, width) uint8 and the stored scale (rows,) float32 with the zero point inside.

    A row with a value that is not finite gets codes of 0 and a NaN scale, so that it stays visible: minimum and
    maximum drop a NaN.
    """
    broken = tl.max(tl.where(tl.abs(y) < float("inf"), 0.0, 1.0), 1) > 0.0
    y = tl.where(broken[:, None], 0.0, y)
    high = tl.maximum(tl.max(y, 1), 0.0)
    low = tl.minimum(tl.min(y, 1), 0.0)
    scale = tl.maximum((high - low) / 15.0, LEAST_SCALE)
    zero = tl.minimum(tl.maximum(round_half_away(-low / scale), 0.0), 15.0)
    code = tl.minimum(tl.maximum(round_half_away(y / scale[:, None] + zero[:, None]), 0.0), 15.0).to(tl.uint8)
    bits = (scale.to(tl.int32, bitcast=True) & ~15) | zero.to(tl.int32)
    return code, tl.where(broken, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["n_rows"])
def write(
    k_in, v_in, slots, n_rows, k_in_row, k_in_head, v_in_row, v_in_head,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, V_BYTE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one KV head, K (last grid axis 0) or V (1). Grid (ceil(n_rows / ROWS), kv_heads, 2).

    V_BYTE: from one byte of a V row to the next; where it is not 1, v_slot is.
    """
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
        target = v + page * aligned(v_page, ALIGN)
        if V_BYTE == 1:
            target += slot * aligned(v_slot, ALIGN)
        else:
            target += slot
        target += head * aligned(v_head, ALIGN)
        scale_target = v_scale + page * vs_page + slot * vs_slot + head * vs_head

    channel = tl.arange(0, WIDTH)
    x = tl.load(source[:, None] + channel[None, :], mask=keep[:, None] & (channel < HEAD)[None, :], other=0.0)
    y = hadamard(x.to(tl.float32) * signs(WIDTH, BLOCK)[None, :], ROWS, WIDTH, BLOCK, LEVELS)
    code, scale = quantize(y)
    even, odd = tl.split(tl.reshape(code, [ROWS, WIDTH // 2, 2]))
    byte = tl.arange(0, WIDTH // 2)
    packed = even | (odd << 4)
    inside = byte < HEAD // 2
    if V_BYTE == 1 or tl.program_id(2) == 0:
        tl.store(target[:, None] + byte[None, :], packed, mask=keep[:, None] & inside[None, :])
    else:
        # Neighbouring threads take neighbouring tokens, which mostly are neighbours in the page too.
        to = target[None, :] + (byte * V_BYTE)[:, None]
        tl.store(to, tl.trans(packed), mask=keep[None, :] & inside[:, None])
    tl.store(scale_target, scale, mask=keep)


WRITE = Write(write)
