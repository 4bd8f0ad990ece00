"""Kernels that may harm nobody but their own process: one reads far outside its memory, one never ends.

A third is refused by the compiler. Only workers import this; under `compile_only` the kernels are compiled, not run.
"""

import torch
import triton
import triton.language as tl

from kvreg_triton.launch import submit


@triton.jit
def _read(x, y, far):  # type: ignore[no-untyped-def]
    tl.store(y, tl.load(x + far))


@triton.jit
def _wait(x):  # type: ignore[no-untyped-def]
    while tl.load(x, volatile=True) == 0.0:
        pass


@triton.jit  # type: ignore[untyped-decorator]
def _refused(x, size: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.static_assert(size > 1, "planted: the compiler refuses this")
    tl.store(x, 1.0)


def out_of_bounds(place: str) -> None:
    """Read 16 TiB behind a tensor."""
    x = torch.zeros(1, device=place)
    submit(_read, (1,), (x, x, 1 << 42), {})
    _finish(place)


def for_ever(place: str) -> None:
    """Wait for a value that nobody writes."""
    submit(_wait, (1,), (torch.zeros(1, device=place),), {})
    _finish(place)


def unbuildable(place: str) -> None:
    """Launch what Triton does not compile."""
    submit(_refused, (1,), (torch.zeros(1, device=place),), {"size": 1})


def total_of_ones(place: str) -> float:
    """Return the sum of 2^20 ones: 1048576.0 from a device that is in order."""
    return float(torch.ones(1 << 20, device=place).sum())


def _finish(place: str) -> None:
    if not place.startswith("cpu"):
        getattr(torch, place.partition(":")[0]).synchronize()
