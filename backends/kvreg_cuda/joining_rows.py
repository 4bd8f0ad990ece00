"""Joining what decode found in parts of whole rows: splits, many at once where there are many, or equal shares.

The shared reduction (kvreg_triton.attend_rows) takes 16 splits at a time, whatever their number, and begins when the
attention has ended; one of 64 splits more is a chain of loads (kvreg_cuda.joining).
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from kvreg.runtime.launchers import AttendCall
from kvreg_cuda.launching import InShares, let_dependents_start, wait_for_the_launch_before
from kvreg_cuda.shares import parts_of
from kvreg_triton.launch import shape_constants
from kvreg_triton.masks import LOG2E

STARTED = tl.constexpr(256)
"""Tokens that other programs read while one begins a row: 4 us (kvreg_cuda.shares) at what one of two programs reads
of 8-bit rows of 128 channels on an H200, 15 ns a token. An estimate; too many cost less than too few, which pile
short sequences into one share."""

VALUES_OF_A_WARP = 2048
"""Partial values that a warp of a join holds at once, 64 in each thread's registers."""


@triton.jit
def join_parts(
    out, lse, partial_out, partial_lse, row, head, part, step, parts, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """Join `parts` results of a row, AT_ONCE at a time, like kvreg_triton.attend_rows.reduce.

    They lie in places of the workspace from `part` on, `step` apart. SPARSE: most of them are empty.
    """
    channel = tl.arange(0, WIDTH)
    base = tl.full([], -float("inf"), tl.float32)
    acc = tl.zeros([WIDTH], tl.float32)
    total = tl.zeros([], tl.float32)
    for first in range(0, parts, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        there = index < parts
        place = part + index * step
        # As in kvreg_cuda.joining: both numbers of a part at once, and its row with them where few are empty.
        both = tl.load(partial_lse + (place * 2)[:, None] + tl.arange(0, 2)[None, :], mask=there[:, None], other=0.0)
        top, mass = tl.split(both)
        # Nobody wrote the rows of an empty split. NaN is not 0: what went wrong in a split stays visible.
        written = there & (mass != 0.0)
        asked = (written if SPARSE else there)[:, None] & (channel < HEAD)[None, :]
        found = tl.load(partial_out + place[:, None] * HEAD + channel[None, :], mask=asked, other=0.0)
        new_base = tl.maximum(base, tl.max(tl.where(there, top, -float("inf")), 0))
        safe = tl.where(new_base == -float("inf"), 0.0, new_base)
        fade = tl.exp2(base - safe)
        weight = tl.where(there, tl.exp2(top - safe), 0.0)
        if not SPARSE:
            found = tl.where(written[:, None], found, 0.0)
        acc = acc * fade + tl.sum(weight[:, None] * found, 0)
        total = total * fade + tl.sum(weight * mass, 0)
        base = new_base
    base = tl.where(base == -float("inf"), 0.0, base)
    share = tl.where(total > 0.0, total, 1.0)
    to = out + row.to(tl.int64) * out_row + head * out_head + channel
    tl.store(to, (acc / share).to(out.dtype.element_ty), mask=channel < HEAD)
    if has_lse:
        tl.store(lse + row.to(tl.int64) * tl.num_programs(1) + head, (base + tl.log2(total)) / LOG2E)


@triton.jit(do_not_specialize=["splits", "has_lse"])
def join(
    out, lse, partial_out, partial_lse, splits, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row and head. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    let_dependents_start()
    wait_for_the_launch_before()
    join_parts(
        out, lse, partial_out, partial_lse, row, head, part, 1, splits, has_lse, out_row, out_head,
        HEAD, WIDTH, AT_ONCE, SPARSE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "n_seqs", "programs", "has_lse"])
def join_shares(
    out, lse, partial_out, partial_lse, cu_q, seq_lens, tokens, n_seqs, programs, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr, SPARSE: tl.constexpr,
    TILE: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Join what equal shares found of one query row and head (kvreg_cuda.shares). Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    let_dependents_start()
    # The attention lets this launch begin when all before it has ended, so that the lengths can be read already.
    first, parts = parts_of(cu_q, seq_lens, tokens, n_seqs, programs, row, TILE, MANY, STARTED)
    step = tl.num_programs(1)
    part = (first + row).to(tl.int64) * step + head
    wait_for_the_launch_before()
    join_parts(
        out, lse, partial_out, partial_lse, row, head, part, step, parts, has_lse, out_row, out_head,
        HEAD, WIDTH, AT_ONCE, SPARSE,
    )  # fmt: skip


class JoinedRows(InShares):
    """Decode over whole rows whose splits, or equal shares, are joined by kernels of this module."""

    def __init__(self, attend: Any, attend_share: Any) -> None:
        super().__init__(attend, attend_share, join, join_shares)

    def join_constants(self, call: AttendCall, at_once: int) -> Mapping[str, Any]:
        """Return the compile-time constants of a join that reads `at_once` parts side by side."""
        shape = shape_constants(call.cache)
        return {
            "HEAD": shape["HEAD"],
            "WIDTH": shape["WIDTH"],
            "num_warps": max(1, at_once * shape["WIDTH"] // VALUES_OF_A_WARP),
        }
