"""Joining what int4 decode found in parts: splits, many at once where there are many, or equal shares.

The shared reduction takes 16 splits at a time. Of one sequence of 131072 tokens an H200 has 132, and the time is that
of a chain of loads: 10 us of 61.7. The shared one keeps its width: it serves every card, and its evidence is of that.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from kvreg.runtime.launchers import AttendCall
from kvreg_cuda.launching import InShares, let_dependents_start, wait_for_the_launch_before
from kvreg_cuda.shares import parts_of
from kvreg_triton.attend_int4 import unrotated
from kvreg_triton.launch import shape_constants
from kvreg_triton.masks import LOG2E


@triton.jit
def join_parts(
    out, lse, partial_out, partial_lse, row, head, part, step, parts, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, AT_ONCE: tl.constexpr,
    SPARSE: tl.constexpr,
):  # fmt: skip
    """Join `parts` results of a row, AT_ONCE at a time, and undo the rotation, like kvreg_triton.attend_int4.reduce.

    They lie in places of the workspace from `part` on, `step` apart. SPARSE: most of them are empty.
    """
    byte = tl.arange(0, WIDTH // 2)
    base = tl.full([], -float("inf"), tl.float32)
    even = tl.zeros([WIDTH // 2], tl.float32)
    odd = tl.zeros([WIDTH // 2], tl.float32)
    total = tl.zeros([], tl.float32)
    for first in range(0, parts, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        there = index < parts
        place = part + index * step
        # Both numbers of a part at once, one for each thread: of fewer Triton lets every warp load those of its own
        # rows, one after the other, and wait for each before it asks for the row.
        both = tl.load(partial_lse + (place * 2)[:, None] + tl.arange(0, 2)[None, :], mask=there[:, None], other=0.0)
        top, mass = tl.split(both)
        # Nobody wrote the rows of an empty split. NaN is not 0: what went wrong in a split stays visible.
        written = there & (mass != 0.0)
        # Where few are empty, rows are not asked for after their numbers, but with them: the time of one load less.
        asked = (written if SPARSE else there)[:, None] & (byte < HEAD // 2)[None, :]
        source = partial_out + place[:, None] * HEAD + byte[None, :]
        low = tl.load(source, mask=asked, other=0.0)
        high = tl.load(source + HEAD // 2, mask=asked, other=0.0)
        new_base = tl.maximum(base, tl.max(tl.where(there, top, -float("inf")), 0))
        safe = tl.where(new_base == -float("inf"), 0.0, new_base)
        fade = tl.exp2(base - safe)
        weight = tl.where(there, tl.exp2(top - safe), 0.0)
        if not SPARSE:
            low = tl.where(written[:, None], low, 0.0)
            high = tl.where(written[:, None], high, 0.0)
        even = even * fade + tl.sum(weight[:, None] * low, 0)
        odd = odd * fade + tl.sum(weight[:, None] * high, 0)
        total = total * fade + tl.sum(weight * mass, 0)
        base = new_base
    base = tl.where(base == -float("inf"), 0.0, base)
    share = tl.where(total > 0.0, total, 1.0)
    y = tl.reshape(tl.join(even / share, odd / share), [1, WIDTH])
    y = tl.reshape(unrotated(y, 1, WIDTH, BLOCK, LEVELS), [WIDTH])
    channel = tl.arange(0, WIDTH)
    to = out + row.to(tl.int64) * out_row + head * out_head + channel
    tl.store(to, y.to(out.dtype.element_ty), mask=channel < HEAD)
    if has_lse:
        tl.store(lse + row.to(tl.int64) * tl.num_programs(1) + head, (base + tl.log2(total)) / LOG2E)


@triton.jit(do_not_specialize=["splits", "has_lse"])
def join(
    out, lse, partial_out, partial_lse, splits, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, AT_ONCE: tl.constexpr,
    SPARSE: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row and head. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    let_dependents_start()
    wait_for_the_launch_before()
    join_parts(
        out, lse, partial_out, partial_lse, row, head, part, 1, splits, has_lse, out_row, out_head,
        HEAD, WIDTH, BLOCK, LEVELS, AT_ONCE, SPARSE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "n_seqs", "programs", "has_lse"])
def join_shares(
    out, lse, partial_out, partial_lse, cu_q, seq_lens, tokens, n_seqs, programs, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, AT_ONCE: tl.constexpr,
    SPARSE: tl.constexpr, TILE: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Join what equal shares found of one query row and head (kvreg_cuda.shares). Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    let_dependents_start()
    # The attention lets this launch begin when all before it has ended, so that the lengths can be read already.
    first, parts = parts_of(cu_q, seq_lens, tokens, n_seqs, programs, row, TILE, MANY)
    step = tl.num_programs(1)
    part = (first + row).to(tl.int64) * step + head
    wait_for_the_launch_before()
    join_parts(
        out, lse, partial_out, partial_lse, row, head, part, step, parts, has_lse, out_row, out_head,
        HEAD, WIDTH, BLOCK, LEVELS, AT_ONCE, SPARSE,
    )  # fmt: skip


WIDE = {"rows": 16, "tile": 32, "num_stages": 5}
"""What serves more than 8 query rows of a sequence at once: every key is read and unpacked once for 16."""

QUAD = 4
"""Threads that share a row of a matrix instruction's result."""


def fitting(call: AttendCall, config: Mapping[str, int]) -> Mapping[str, int]:
    """Return the launch parameters for a call, which several query tokens a sequence may ask for other rows of."""
    rows, n_seqs = call.q.shape[0], call.cu_q.shape[0] - 1
    group = call.q.shape[1] // call.cache.kv_heads
    if rows <= n_seqs or triton.cdiv(rows, n_seqs) * group <= config["rows"]:
        return config
    # A bound on registers that 8 rows keep makes 16 spill.
    return {name: value for name, value in config.items() if name != "maxnreg"} | WIDE


def subsets(call: AttendCall, rows_of: int) -> int:
    """Return into how many subsets the rows of a group that leaves some free cut a tile's keys.

    Several query tokens of a sequence fill the rows themselves.
    """
    rows, n_seqs = call.q.shape[0], call.cu_q.shape[0] - 1
    group = call.q.shape[1] // call.cache.kv_heads
    return max(1, rows_of // triton.next_power_of_2(group)) if rows <= n_seqs else 1


class Joined(InShares):
    """int4 decode whose splits, or equal shares, are joined by kernels of this module."""

    def __init__(self, attend: Any, attend_share: Any) -> None:
        super().__init__(attend, attend_share, join, join_shares)

    def shares(self, kv_heads: int, compute_units: int | None, config: Mapping[str, int]) -> int:
        """Return how many programs of each KV head fill the device, half as many again as where splits are even.

        Shares are equal, what they take is not: of 64 sequences, 17 to 131072 tokens, 12 programs a unit of an H200
        took 319 us, 8 took 352.
        """
        return max(1, (compute_units or 1) * config["programs_per_unit"] * 3 // 2 // kv_heads)

    def fitted(self, call: AttendCall, config: Mapping[str, int]) -> Mapping[str, int]:
        """Return launch parameters whose rows hold a sequence's query tokens, and the subsets of keys."""
        wide = fitting(call, config)
        cuts = subsets(call, wide["rows"])
        # A thread of one warp has one row of 8, and its weights side by side; of 16 rows it has two.
        words = wide["num_warps"] == 1 and wide["rows"] == 8 and wide["tile"] // cuts // QUAD >= 4
        return {**wide, "SUBSETS": cuts, "WORDS": words}

    def join_constants(self, call: AttendCall, at_once: int) -> Mapping[str, Any]:
        """Return the compile-time constants of a join that reads `at_once` parts side by side."""
        constants = shape_constants(call.cache)
        rotated = {name: constants[name] for name in ("HEAD", "WIDTH", "BLOCK", "LEVELS")}
        return {**rotated, "num_warps": 1 if at_once == 16 else 4}
