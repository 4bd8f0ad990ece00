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

from kvreg.core.formats import E4M3FN, E4M3FNUZ, QMAX
from kvreg.core.modes import Mode, rotation_block
from kvreg.runtime import replay
from kvreg.runtime.launchers import AttendCall, CacheView

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton runs its kernels on the CPU; read once, as Triton itself does when a kernel is defined."""

_state = threading.local()


@contextmanager
def compile_only() -> Iterator[list[Any]]:
    """Compile instead of launching; yields the list that the compiled kernels are appended to."""
    _state.compiled = compiled = []
    try:
        with replay.paused():
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


def operand_types(dtype: torch.dtype, mode: Mode) -> tuple[tl.dtype, tl.dtype]:
    """Return the types of matrix operands: of the query's product and of the values'.

    int4 takes fp16 for both (kvreg_triton.attend_int4 says why); 8-bit codes are exact in every 16-bit type, so the
    query keeps the model's and the weights, at most 1, take fp16's finer steps.
    """
    if INTERPRETED:
        return tl.float32, tl.float32  # the interpreter holds bf16 as integers and multiplies those
    model = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}.get(dtype, tl.float32)
    if mode is Mode.INT4_PER_TOKEN_HEAD:
        return tl.float16, tl.float16
    return model, model if mode is Mode.NONE else tl.float16


def rows_of(cache: CacheView) -> tuple[Any, ...]:
    """Return pointers and strides (in elements) of the K and V rows, in the order that every kernel takes them.

    Values of a row are adjacent, but for V of int4 where V_BYTE says otherwise.
    """
    k, v = cache.k.stride(), cache.v.stride()
    return (cache.k, cache.v, k[0], k[1], k[2], v[0], v[1], v[2])


def scales_of(cache: CacheView) -> tuple[Any, ...]:
    """Return the same of the row scales; where rows carry none, pointers that nothing reads."""
    if cache.k_scale is None or cache.v_scale is None:
        return (cache.k, cache.v, 0, 0, 0, 0, 0, 0)
    return (cache.k_scale, cache.v_scale, *cache.k_scale.stride(), *cache.v_scale.stride())


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
        constants |= {"BLOCK": block, "LEVELS": block.bit_length() - 1, "V_BYTE": cache.v.stride(3)}
    return constants


BLOCKS = frozenset(("rows", "tile", "programs_per_unit", "chunk"))
"""What of a config is the kernel's or the grid's; all else goes to the compiler."""


def launch_options(config: Mapping[str, int]) -> dict[str, int]:
    """Return what of a config is the compiler's: warps, stages and what else the platform's space names."""
    return {name: value for name, value in config.items() if name not in BLOCKS}


_PLACES = ("ALIGN", "PAGE", "V_BYTE")
"""Constants that say where rows lie, which a reduction does not read."""


class Write:
    """Launches a write kernel: one program a tile of rows, a KV head, and K or V."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(
        self, cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
    ) -> None:
        """Store `slots.shape[0]` rows; see kvreg.runtime.launchers.WriteLauncher."""
        rows = slots.shape[0]
        args = (k, v, slots, rows, k.stride(0), k.stride(1), v.stride(0), v.stride(1), *rows_of(cache))
        constants = shape_constants(cache) | {"ROWS": config["rows"]}
        if cache.mode is not Mode.NONE:
            args = (*args, *scales_of(cache))
        if cache.mode not in (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD):
            args = (*args, cache.k_scale if cache.tensor_scales is None else cache.tensor_scales)
            constants |= {"SCALED": cache.mode.has_scales, "QMAX": largest_code(cache)}
        grid = (triton.cdiv(rows, config["rows"]), cache.kv_heads, 2)
        submit(self.kernel, grid, args, constants | launch_options(config))


def largest_code(cache: CacheView) -> float:
    """Return the largest magnitude that 8-bit values are scaled to."""
    if cache.mode is Mode.INT8_PER_TOKEN_HEAD:
        return 127.0
    return QMAX[E4M3FNUZ if cache.k.dtype is torch.float8_e4m3fnuz else E4M3FN]


class _Attend:
    """What decode and prefill share: they are one kernel, launched with few or many rows, split or whole."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def launch(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch the attention over `call.split.splits` parts of each context."""
        q, out, cache, plan, features = call.q, call.out, call.cache, call.split, call.features
        tokens, q_heads, _ = q.shape
        n_seqs, group = call.cu_q.shape[0] - 1, q_heads // cache.kv_heads
        single = plan.splits == 1
        # Of one row a sequence every block has work: idle ones between them starved a third of an H200's
        # multiprocessors. Else an upper bound that needs no look at cu_q: see kvreg_triton.paging.block_sequence.
        apart = int(tokens > n_seqs)
        blocks = tokens // (config["rows"] // group) + n_seqs if apart else tokens
        # Pointers that a kernel does not read (workspace, lse, features that are off) are given `out` to stand in.
        partial_out, partial_lse = (out, out) if single else (plan.partial_out, plan.partial_lse)
        # One of float32 where there is one, so that a call without lse takes the same compiled kernel.
        spare = next((x for x in (call.lse, plan.partial_lse, cache.k_scale) if x is not None), out)
        per_sequence = isinstance(features.causal, torch.Tensor)
        ranges = features.prefix_ranges
        args = (
            q, out, spare, partial_out, partial_lse,
            call.page_table, call.seq_lens, call.cu_q, tokens, n_seqs, group, apart, plan.splits, plan.chunk,
            int(call.lse is not None), call.scale,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), call.page_table.stride(0),
            features.causal if per_sequence else out, features.window or 0, features.softcap or 0.0,
            out if features.sinks is None else features.sinks, out if features.alibi is None else features.alibi,
            out if ranges is None else ranges, *rows_of(cache), *scales_of(cache),
        )  # fmt: skip
        compute, values = operand_types(q.dtype, cache.mode)
        constants = shape_constants(cache) | {
            "ROWS": config["rows"],
            "TILE": config["tile"],
            "STAGES": config["num_stages"],
            "SINGLE": single,
            "CAUSAL": 2 if per_sequence else int(bool(features.causal)),
            "WINDOW": features.window is not None,
            "SOFTCAP": features.softcap is not None,
            "SINKS": features.sinks is not None,
            "ALIBI": features.alibi is not None,
            "RANGES": 0 if ranges is None else ranges.shape[1],
            "COMPUTE": compute,
        }
        if cache.mode is not Mode.INT4_PER_TOKEN_HEAD:
            args = (*args, out if cache.tensor_scales is None else cache.tensor_scales)
            constants |= {
                "SCALED": cache.mode.has_scales,
                "TENSOR_SCALED": cache.tensor_scales is not None,
                "VALUES": values,
            }
        submit(self.kernel, (blocks, cache.kv_heads, plan.splits), args, constants | launch_options(config))


class Decode(_Attend):
    """Launches attention with split KV, and the reduction where a context is split."""

    def __init__(self, kernel: Any, reduce: Any) -> None:
        super().__init__(kernel)
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
        self.launch(call, config)
        plan, out = call.split, call.out
        lse = plan.partial_lse if call.lse is None else call.lse
        if plan.splits > 1:
            constants = shape_constants(call.cache)
            row_constants = {name: value for name, value in constants.items() if name not in _PLACES}
            submit(
                self.reduce,
                call.q.shape[:2],
                (
                    out, lse, plan.partial_out, plan.partial_lse, plan.splits, int(call.lse is not None),
                    out.stride(0), out.stride(1),
                ),
                row_constants | {"num_warps": 1, "num_stages": 1},
            )  # fmt: skip


class Prefill(_Attend):
    """Launches attention over whole contexts."""

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
        self.launch(call, config)
