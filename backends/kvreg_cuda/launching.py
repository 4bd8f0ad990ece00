"""Launches that no portable kernel knows: overlapping ones, and ones of as many programs as fill the card.

From sm_90 on joins and writes are dependent launches: their programs come up while the last of the launch before
them runs and wait there for all of it, so that the time of a launch is hidden. Attention is not: programs that come up
while others leave crowd on the first multiprocessors that have room, and end late (docs/performance.md).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvreg.runtime.launchers import AttendCall, CacheView
from kvreg_cuda.shares import MOST_ROWS
from kvreg_triton.launch import INTERPRETED, Decode, Write, submit

COMPILED = tl.constexpr(not INTERPRETED)

FEW_SPLITS = 64
"""Up to here 16 splits are read side by side; more, 64."""

ROOMY_WARPS = 8
"""Warps of a multiprocessor that find room whatever they take: 65536 registers, at most 255 a thread (CUDA C++
Programming Guide, table of compute capabilities)."""


@triton.jit
def let_dependents_start():
    """Let the launch behind this one come up; from sm_90 on, and without effect on any other launch."""
    if COMPILED:
        if target_info.cuda_capability_geq(9, 0):
            gdc_launch_dependents()


@triton.jit
def wait_for_the_launch_before():
    """Wait until all of the launch before this one has ended and can be read; where launches overlap at all.

    Every program calls it before it touches memory, also one without work: a launch whose programs left at once would
    count as ended before the one that it follows.
    """
    if COMPILED:
        if target_info.cuda_capability_geq(9, 0):
            gdc_wait()


@cache
def overlapping(device: torch.device) -> Mapping[str, bool]:
    """Return the launch option with which a kernel comes up while the one before ends, where a device has it."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"launch_pdl": True} if able else {}


class Programs:
    """A kernel whose first grid axis has so many programs, whatever the rows and splits of a call."""

    def __init__(self, kernel: Any, programs: int) -> None:
        self.kernel, self.programs = kernel, programs

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.kernel[self.programs, grid[1]]

    def warmup(self, *args: Any, grid: tuple[int, ...], **meta: Any) -> Any:
        """Compile as triton.JITFunction.warmup does."""
        return self.kernel.warmup(*args, grid=(self.programs, grid[1]), **meta)


def shareable(call: AttendCall) -> bool:
    """Return whether equal shares can serve a call: a row a sequence, whose keys begin with its first."""
    features = call.features
    return (
        call.q.shape[0] < call.cu_q.shape[0] <= MOST_ROWS + 1
        and features.window is None
        and features.sinks is None
        and features.prefix_ranges is None
    )


class InShares(Decode):
    """Decode in splits, or in equal shares where a plan has them and the call allows it, joined by dependent launches.

    Parts of a fixed length are read 16 side by side whatever their number: the order of a sum would depend on the
    longest sequence of a batch, and batch-invariant sums must not.
    """

    def __init__(self, attend: Any, attend_share: Any, join: Any, join_shares: Any) -> None:
        super().__init__(attend, join)
        self.attend_share, self.join_shares = attend_share, join_shares

    def shares(self, kv_heads: int, compute_units: int | None, config: Mapping[str, int]) -> int:
        """Return how many programs of each KV head fill the device and all run at once: one that waits ends late."""
        at_once = min(config["programs_per_unit"], max(1, ROOMY_WARPS // config["num_warps"]))
        return max(1, (compute_units or 1) * at_once // kv_heads)

    def fitted(self, call: AttendCall, config: Mapping[str, int]) -> Mapping[str, int]:
        """Return the launch parameters for a call, with what a kernel of a subclass wants beside them."""
        return config

    def join_constants(self, call: AttendCall, at_once: int) -> Mapping[str, Any]:
        """Return the compile-time constants of a join that reads `at_once` parts side by side."""
        raise NotImplementedError  # every subclass has its own

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch; see kvreg.runtime.launchers.AttendLauncher."""
        plan, config = call.split, self.fitted(call, config)
        if plan.shares and shareable(call):
            self._share(call, config)
            return
        self.launch(call, config)
        if plan.splits > 1:
            at_once = 64 if plan.chunk == 0 and plan.splits > FEW_SPLITS else 16
            # Of parts of one length most are empty; of even splits and of shares none is that has a row.
            self._join(self.reduce, call, (plan.splits,), at_once, {"SPARSE": plan.chunk > 0})

    def _share(self, call: AttendCall, config: Mapping[str, int]) -> None:
        rows, n_seqs, programs = call.q.shape[0], call.cu_q.shape[0] - 1, call.split.shares
        many = {"MANY": max(16, triton.next_power_of_2(n_seqs))}
        Decode(Programs(self.attend_share, programs), None).launch(call, {**config, **many})
        lengths = (call.cu_q, call.seq_lens, rows, n_seqs, programs)
        self._join(self.join_shares, call, lengths, 16, {"SPARSE": False, "TILE": config["tile"], **many})

    def _join(
        self, kernel: Any, call: AttendCall, parts: tuple[Any, ...], at_once: int, meta: Mapping[str, Any]
    ) -> None:
        plan, out = call.split, call.out
        submit(
            kernel,
            call.q.shape[:2],
            (
                out, plan.partial_lse if call.lse is None else call.lse, plan.partial_out, plan.partial_lse,
                *parts, int(call.lse is not None), out.stride(0), out.stride(1),
            ),
            {"AT_ONCE": at_once, "num_stages": 1, **self.join_constants(call, at_once), **meta}
            | overlapping(out.device),
        )  # fmt: skip


class OverlappingWrite(Write):
    """Launches a write that comes up while the launch before it ends."""

    def __call__(
        self, cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
    ) -> None:
        """Launch; see kvreg.runtime.launchers.WriteLauncher."""
        super().__call__(cache, k, v, slots, {**config, **overlapping(k.device)})
