"""Prefill over an int4 cache with a launch option that only AMD's compiler has: matrix tiles of 16 rows.

Blocks of 64 query rows let the compiler take MFMA of 32x32x8, whose accumulators fill whole tiles of 32 rows. With
tiles of 16 the same kernel needs fewer registers: with a cache above 2 GiB 240 against 269 on gfx942 at head size 128
(Triton 3.9.0), which is the step from one wave a SIMD to two. RDNA's WMMA has 16 rows always, and the portable variant
serves there.
"""

from __future__ import annotations

from typing import Any

from kvreg_triton.attend_int4 import attend
from kvreg_triton.launch import Prefill

MATRIX_ROWS = 16


class WithOptions:
    """A kernel whose every launch and compilation carries further options of the platform's compiler."""

    def __init__(self, kernel: Any, **options: int) -> None:
        self.kernel = kernel
        self.options = options

    def warmup(self, *args: Any, grid: tuple[int, ...], **meta: Any) -> Any:
        """Compile, as the kernel itself does."""
        return self.kernel.warmup(*args, grid=grid, **meta, **self.options)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Return what launches on `grid`."""
        launch = self.kernel[grid]
        return lambda *args, **meta: launch(*args, **meta, **self.options)


PREFILL = Prefill(WithOptions(attend, matrix_instr_nonkdim=MATRIX_ROWS))
