"""Store K and V rows unquantized: a strided copy of d values a row, whatever their 16- or 32-bit type."""

import triton
import triton.language as tl

from kvreg_triton.launch import Write
from kvreg_triton.paging import aligned


@triton.jit(do_not_specialize=["n_rows"])
def write(
    k_in, v_in, slots, n_rows, k_in_row, k_in_head, v_in_row, v_in_head,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr,
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
    else:
        source = v_in + row.to(tl.int64) * v_in_row + head * v_in_head
        target = v + page * aligned(v_page, ALIGN) + slot * aligned(v_slot, ALIGN)
        target += head * aligned(v_head, ALIGN)
    channel = tl.arange(0, WIDTH)
    inside = keep[:, None] & (channel < HEAD)[None, :]
    x = tl.load(source[:, None] + channel[None, :], mask=inside)
    tl.store(target[:, None] + channel[None, :], x, mask=inside)


WRITE = Write(write)
