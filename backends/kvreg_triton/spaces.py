"""Block sizes that a tuner may try, and which configs need no trial; shared by the Triton platforms. Torch-free.

Compiler options (warps, stages, a vendor's own) are the platform's: see `space` of its backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.launchable import MOST_THREADS
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg_triton.configs import padded

Space = dict[str, Sequence[int]]

MOST_WRITE_VALUES = 8192
"""Values of a write's program: 8 KiB of codes in flight; more leaves a decode step's few tokens to a few units."""

ACCUMULATOR_BYTES = 4


def blocks(variant: Variant, request: Request) -> Space:
    """Return the block sizes of a variant of kvreg_triton.

    A decode's rows are the group's, padded to what a matrix unit takes: more would be computed and thrown away.
    `chunk` is not in any space: only `batch_invariant` reads it, and that launches with the defaults.
    """
    width = padded(request.head_size)
    if variant.op is Op.WRITE:
        return {"rows": tuple(rows for rows in (1, 2, 4, 8, 16, 32, 64) if rows * width <= MOST_WRITE_VALUES)}
    tiles = tuple(tile for tile in (16, 32, 64, 128) if tile * width <= 128 * 256)
    if variant.op is Op.DECODE:
        return {"tile": tiles, "programs_per_unit": (1, 2, 4, 8, 16)}
    least = max(16, padded(request.group))
    return {"rows": tuple(rows for rows in (16, 32, 64, 128) if rows >= least) or (least,), "tile": tiles}


def options_of(variant: Variant, known: Mapping[str, Sequence[int]]) -> Space:
    """Return those options of a platform that the variant's launcher passes to the compiler."""
    return {name: known[name] for name in variant.options if name in known}


def unfit(
    variant: Variant, device: Device, request: Request, config: Mapping[str, int], *, stages_a_tile: int = 1
) -> str | None:
    """Return why a config cannot win, from what must hold whatever the compiler does; None where nothing tells.

    `stages_a_tile`: pipeline stages beyond the first that it takes to keep one more tile in shared memory.
    """
    threads = config["num_warps"] * max(device.warp_sizes, default=32)
    if threads > MOST_THREADS:
        return f"{threads} threads a block, at most {MOST_THREADS}"
    if variant.op is Op.WRITE:
        values = config["rows"] * padded(request.head_size)
        return f"{values} values for {threads} threads: some have none" if values < threads else None
    return _accumulator(device, request, config, threads) or _pipeline(
        variant, device, request, config, (config["num_stages"] - 1) // stages_a_tile
    )


def _accumulator(device: Device, request: Request, config: Mapping[str, int], threads: int) -> str | None:
    """The float32 result of a block lives in registers from the first tile to the last."""
    registers = config["rows"] * padded(request.head_size) // threads
    most = device.facts.get("registers_per_thread_max")
    if isinstance(most, int) and registers >= most:
        return f"{registers} registers a thread for the result alone, at most {most}: it would spill"
    return None


def _pipeline(variant: Variant, device: Device, request: Request, config: Mapping[str, int], ahead: int) -> str | None:
    """Tiles ahead of the one that is computed lie in shared memory, K and V."""
    limit = device.shared_per_block_max_bytes
    needed = ahead * config["tile"] * 2 * variant.mode.row_bytes(request.head_size)
    if limit is not None and needed > limit:
        return f"{ahead} tiles ahead are {needed} B of shared memory, at most {limit} B"
    return None
