"""From checked tensors to kernel launches: grids, strides, compile-time constants.

`compile_only()` turns every launch of the current thread into a compilation, so that a validation or tuning run can
build all its specializations in parallel processes before the card is needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl

from kvreg.core.modes import Mode, rotation_block
from kvreg.runtime.launchers import AttendCall, CacheView

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton runs its kernels on the CPU; read once, as Triton itself does when a kernel is defined."""

_state = threading.local()


@contextmanager
def compile_only() -> Iterator[list[Any]]:
    """Compile instead of launching; yields the list that the compiled kernels are appended to."""
    _state.compiled = compiled = []
    try:
        yield compiled
    finally:
        _state.compiled = None


def submit(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Launch `kernel` on the device of its first tensor, or only compile it under `compile_only`."""
    if 0 in grid:
        return
    compiled = getattr(_state, "compiled", None)
    if not INTERPRETED:
        # Triton 3.10 will change the default; contraction to FMA is what the evidence was taken with.
        meta["enable_fp_fusion"] = True
    if compiled is not None:
        compiled.append(kernel.warmup(*args, grid=grid, **meta))
    elif args[0].is_cpu or args[0].device.index == torch.accelerator.current_device_index():
        kernel[grid](*args, **meta)
    else:
        with torch.accelerator.device_index(args[0].device.index):
            kernel[grid](*args, **meta)


def compute_dtype(dtype: torch.dtype, mode: Mode) -> tl.dtype:
    """Return the type of matrix operands: fp32 where interpreted, fp16 for int4, else the model's own."""
    if INTERPRETED:
        return tl.float32  # the interpreter holds bf16 as integers and multiplies those
    if mode is Mode.INT4_PER_TOKEN_HEAD or dtype is torch.float16:
        return tl.float16
    return tl.bfloat16 if dtype is torch.bfloat16 else tl.float32


def planes(cache: CacheView) -> tuple[Any, ...]:
    """Return the cache's pointers and strides (in elements) in the order that every kernel takes them."""
    k, v = cache.k.stride(), cache.v.stride()
    args = (cache.k, cache.v, k[0], k[1], k[2], v[0], v[1], v[2])
    if cache.k_scale is None or cache.v_scale is None:
        return args
    return (*args, cache.k_scale, cache.v_scale, *cache.k_scale.stride(), *cache.v_scale.stride())


def shape_constants(cache: CacheView) -> dict[str, Any]:
    """Return the compile-time constants that follow from the cache alone."""
    constants: dict[str, Any] = {
        "HEAD": cache.head_size,
        "WIDTH": triton.next_power_of_2(cache.head_size),
        "ALIGN": max(1, cache.alignment // cache.k.element_size()),
        "PAGE": cache.page,
    }
    if cache.mode is Mode.INT4_PER_TOKEN_HEAD:
        block = rotation_block(cache.head_size)
        constants |= {"BLOCK": block, "LEVELS": block.bit_length() - 1}
    return constants


def launch_options(config: Mapping[str, int]) -> dict[str, int]:
    """Return what of a config is the compiler's; the rest is the kernel's."""
    return {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}


class Write:
    """Launches a write kernel: one program a tile of rows, a KV head, and K or V."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(
        self, cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
    ) -> None:
        """Store `slots.shape[0]` rows; see kvreg.runtime.launchers.WriteLauncher."""
        rows = slots.shape[0]
        args = (k, v, slots, rows, k.stride(0), k.stride(1), v.stride(0), v.stride(1), *planes(cache))
        grid = (triton.cdiv(rows, config["rows"]), cache.kv_heads, 2)
        submit(self.kernel, grid, args, shape_constants(cache) | {"ROWS": config["rows"]} | launch_options(config))


class Decode:
    """Launches decode with split KV, and the reduction where the context is split."""

    def __init__(self, kernel: Any, reduce: Any) -> None:
        self.kernel = kernel
        self.reduce = reduce

    def splits(
        self,
        rows: int,
        kv_heads: int,
        group: int,
        max_context: int,
        compute_units: int | None,
        config: Mapping[str, int],
    ) -> int:
        """Return enough splits to give each compute unit `programs_per_unit` programs, each of two tiles or more."""
        wanted = (compute_units or 1) * config["programs_per_unit"]
        most = triton.cdiv(max_context, 2 * config["tile"])
        return max(1, min(wanted // max(1, rows * kv_heads), most))

    def chunk(self, config: Mapping[str, int]) -> int:
        """Return the split length that is the same for every batch."""
        return config["chunk"]

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch; see kvreg.runtime.launchers.AttendLauncher."""
        q, out, cache, plan = call.q, call.out, call.cache, call.split
        rows, q_heads, _ = q.shape
        single = plan.splits == 1
        # With one split nothing is read from or written to the workspace; any pointer serves as the argument.
        partial_out, partial_lse = (out, out) if single else (plan.partial_out, plan.partial_lse)
        lse = out if call.lse is None else call.lse
        constants = shape_constants(cache)
        has_lse = {"HAS_LSE": call.lse is not None}
        args = (
            q, out, lse, partial_out, partial_lse, call.page_table, call.seq_lens, call.cu_q,
            call.cu_q.shape[0] - 1, q_heads // cache.kv_heads, plan.splits, plan.chunk, call.scale,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), call.page_table.stride(0), *planes(cache),
        )  # fmt: skip
        meta = {
            "ROWS": config["rows"],
            "TILE": config["tile"],
            "STAGES": config["num_stages"],
            "SINGLE": single,
            "COMPUTE": compute_dtype(q.dtype, cache.mode),
        }
        submit(
            self.kernel,
            (rows, cache.kv_heads, plan.splits),
            args,
            constants | has_lse | meta | launch_options(config),
        )
        if not single:
            row_constants = {
                name: constants[name] for name in ("HEAD", "WIDTH", "BLOCK", "LEVELS") if name in constants
            }
            submit(
                self.reduce,
                (rows, q_heads),
                (out, lse, partial_out, partial_lse, plan.splits, out.stride(0), out.stride(1)),
                row_constants | has_lse | {"num_warps": 1, "num_stages": 1},
            )


class Prefill:
    """Launches attention over blocks of query rows; it never splits a context."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def splits(
        self,
        rows: int,
        kv_heads: int,
        group: int,
        max_context: int,
        compute_units: int | None,
        config: Mapping[str, int],
    ) -> int:
        """Return 1."""
        return 1

    def chunk(self, config: Mapping[str, int]) -> int:
        """Return 0: contexts stay whole, and a row's result does not depend on the batch."""
        return 0

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch; see kvreg.runtime.launchers.AttendLauncher."""
        q, out, cache = call.q, call.out, call.cache
        tokens, q_heads, _ = q.shape
        group = q_heads // cache.kv_heads
        n_seqs = call.cu_q.shape[0] - 1
        lse = out if call.lse is None else call.lse
        args = (
            q, out, lse, call.page_table, call.seq_lens, call.cu_q, tokens, n_seqs, group, call.scale,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), call.page_table.stride(0), *planes(cache),
        )  # fmt: skip
        meta = {
            "ROWS": config["rows"],
            "TILE": config["tile"],
            "STAGES": config["num_stages"],
            "HAS_LSE": call.lse is not None,
            "COMPUTE": compute_dtype(q.dtype, cache.mode),
        }
        # An upper bound that needs no look at cu_q's values: see kvreg_triton.paging.block_sequence.
        blocks = tokens // (config["rows"] // group) + n_seqs if tokens else 0
        submit(self.kernel, (blocks, cache.kv_heads), args, shape_constants(cache) | meta | launch_options(config))
