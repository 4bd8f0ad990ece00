"""Launches that no portable kernel knows: overlapping ones, and ones of as many programs as fill the card.

From sm_90 on a reduction is a dependent launch: its programs come up while the last of the attention runs and wait
there for all of it, so that the time of a launch is hidden.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvreg.runtime.launchers import AttendCall
from kvreg_cuda.shares import MOST_ROWS
from kvreg_triton.launch import INTERPRETED

COMPILED = tl.constexpr(not INTERPRETED)


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


@cache
def overlaps(device: torch.device) -> bool:
    """Return whether launches of a device can wait inside a kernel for the one before: from sm_90 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


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
