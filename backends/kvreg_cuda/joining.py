"""Joining the splits of int4 decode: many at once where there are many, and begun before the attention has ended.

The shared reduction takes 16 splits at a time. Of one sequence of 131072 tokens an H200 has 132, and the time is that
of a chain of loads: 10 us of 61.7. The shared one keeps its width: it serves every card, and its evidence is of that.

From sm_90 on the reduction is a dependent launch: its programs come up while the last of the attention runs and wait
there for all of it, so that the time of a launch is hidden.
"""

from collections.abc import Mapping
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvreg.runtime.launchers import AttendCall
from kvreg_triton.attend_int4 import unrotated
from kvreg_triton.launch import INTERPRETED, Decode, shape_constants, submit
from kvreg_triton.masks import LOG2E

COMPILED = tl.constexpr(not INTERPRETED)
FEW_SPLITS = 64
"""Up to here 16 splits are read at once, by one warp; more by four, which hold 64 splits' rows in registers."""


@triton.jit
def let_dependents_start():
    """Say that the launch behind this one may begin; from sm_90 on, and without effect on any other launch."""
    if COMPILED:
        if target_info.cuda_capability_geq(9, 0):
            gdc_launch_dependents()


@triton.jit
def wait_for_the_launch_before():
    """Wait until all of the launch before this one has ended and can be read; where launches overlap at all."""
    if COMPILED:
        if target_info.cuda_capability_geq(9, 0):
            gdc_wait()


@triton.jit(do_not_specialize=["splits", "has_lse"])
def join(
    out, lse, partial_out, partial_lse, splits, has_lse, out_row, out_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Do what kvreg_triton.attend_int4.reduce does, AT_ONCE splits at a time. Grid (rows, q_heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = (row.to(tl.int64) * tl.num_programs(1) + head) * splits
    byte = tl.arange(0, WIDTH // 2)
    wait_for_the_launch_before()
    base = -float("inf")
    for first in range(0, splits, 4 * AT_ONCE):
        split = first + tl.arange(0, 4 * AT_ONCE)
        tops = tl.load(partial_lse + (part + split) * 2, mask=split < splits, other=-float("inf"))
        base = tl.maximum(base, tl.max(tops, 0))
    base = tl.where(base == -float("inf"), 0.0, base)
    even = tl.zeros([WIDTH // 2], tl.float32)
    odd = tl.zeros([WIDTH // 2], tl.float32)
    total = 0.0
    for first in range(0, splits, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        top = tl.load(partial_lse + (part + split) * 2, mask=split < splits, other=-float("inf"))
        mass = tl.load(partial_lse + (part + split) * 2 + 1, mask=split < splits, other=0.0)
        weight = tl.exp2(top - base)
        source = partial_out + (part + split)[:, None] * HEAD + byte[None, :]
        # Nobody wrote the rows of an empty split. NaN is not 0: what went wrong in a split stays visible.
        inside = (mass != 0.0)[:, None] & (byte < HEAD // 2)[None, :]
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


@cache
def overlaps(device: torch.device) -> bool:
    """Return whether launches of a device can wait inside a kernel for the one before: from sm_90 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class Joined(Decode):
    """Decode whose reduction is `join`.

    Parts of a fixed length are read 16 at once whatever their number: the order of a sum would depend on the longest
    sequence of a batch, and batch-invariant sums must not.
    """

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch; see kvreg.runtime.launchers.AttendLauncher."""
        group = call.q.shape[1] // call.cache.kv_heads
        subsets = 8 // triton.next_power_of_2(group) if call.q.shape[0] == call.cu_q.shape[0] - 1 else 1
        self.launch(call, {**config, "SUBSETS": subsets})
        plan, out = call.split, call.out
        if plan.splits == 1:
            return
        constants = shape_constants(call.cache)
        few = plan.chunk > 0 or plan.splits <= FEW_SPLITS
        submit(
            self.reduce,
            call.q.shape[:2],
            (
                out, plan.partial_lse if call.lse is None else call.lse, plan.partial_out, plan.partial_lse,
                plan.splits, int(call.lse is not None), out.stride(0), out.stride(1),
            ),
            {name: constants[name] for name in ("HEAD", "WIDTH", "BLOCK", "LEVELS")}
            | {"AT_ONCE": 16 if few else 64, "num_warps": 1 if few else 4, "num_stages": 1}
            | ({"launch_pdl": True} if overlaps(out.device) else {}),
        )  # fmt: skip
