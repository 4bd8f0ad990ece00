"""What a tuner tries for decode and prefill of this package: the regions that grids on H200s found good. Torch-free.

Every value stands with its source. What the values leave over is pruned by `unfit`, with its reason, so that a space
has some tens of configs and is tried as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg_cuda.variants import ROWS
from kvreg_triton.configs import padded

UNBOUND = 255
"""Registers of a thread at most: as `maxnreg` it is no bound."""

INT4_DECODE: Mapping[str, tuple[int, ...]] = {
    # 32 in few registers and 64 were the best of grids (docs/int4-decode.md); 128 spills at one warp and lost.
    "tile": (32, 64),
    # 8 is the default, 12 of tiles of 32 find room, 4 was the best of one long sequence (docs/performance.md).
    "programs_per_unit": (4, 6, 8, 12),
    # One warp keeps row reductions in registers; two with tiles of 64 were the best of the recorded b1-c4096.
    "num_warps": (1, 2),
    # Pages are loaded a stage before rows: 3 keep one tile in flight, 5 two. 7 lost in every grid.
    "num_stages": (3, 5),
    # 168 is the default at small heads and 144 was, 208 was the best of 1 x 131072 with tiles of 64.
    "maxnreg": (144, 168, 208, UNBOUND),
}
"""Groups of up to 8, whose rows share a tile's keys."""

PAIRED_DECODE: Mapping[str, tuple[int, ...]] = {
    # The best of the grids of docs/performance.md: 128 with 4 warps and 2 programs, 64 with 1 or 2 warps, 32 with 1.
    "tile": (32, 64, 128),
    "programs_per_unit": (1, 2, 4, 8),
    "num_warps": (1, 2, 4),
    "num_stages": (3, 5),
}
"""Decode over pairs of 8-bit codes."""

PREFILL: Mapping[str, tuple[int, ...]] = {
    # 64 were the best up to 256, 32 of 16 bits at 512; 128 with 8 warps came next (docs/performance.md).
    "rows": (32, 64, 128),
    "tile": (32, 64, 128),
    "num_warps": (4, 8),
    # 4 leave room for one block on a unit and lost.
    "num_stages": (2, 3),
}
"""Prefill over laid out rows; from how many query rows on a sequence is one stays the default's."""

WANTED: Mapping[tuple[int, int, int], int] = {
    (64, 32, 1): 128,
    (64, 32, 2): 142,
    (64, 64, 1): 168,
    (64, 64, 2): 173,
    (128, 32, 1): 181,
    (128, 32, 2): 178,
    (128, 64, 1): 211,
    (128, 64, 2): 192,
    (256, 32, 1): 261,
    (256, 32, 2): 232,
    (256, 64, 1): 260,
    (256, 64, 2): 254,
}
"""(padded head size, tile, warps) -> registers that a thread of int4 decode takes where it may: compiled for sm_90 by
Triton 3.6.0, 5 stages, group 4 (of 256 group 2). Above 255 it is 255 and the words that are spilled there anyway."""

SPILLING = 0.78
"""Below this share of what is wanted every bound of INT4_DECODE made the compiler spill, 12 to 700 bytes a thread;
from it on one did, 12 bytes, and one of a group of 1, 20. What spills without a bound spills more with any."""

STAGES_A_TILE = 2
"""Pipeline stages beyond the first for one more tile in flight: pages are loaded a stage before rows, and
metadata.shared of int4 decode is one tile at 3 and 4 stages, two at 5."""

REGISTER_STEP = 8
"""Registers of a thread are handed out in steps: 256 a warp, NVIDIA's occupancy calculator for sm_80 and later."""


def knobs(variant: Variant, request: Request) -> Mapping[str, tuple[int, ...]] | None:
    """Return what is searched for decode and prefill of this package; None where nothing here was in a grid."""
    if lays_out(variant):
        least = max(16, padded(request.group))
        return {**PREFILL, "rows": tuple(rows for rows in PREFILL["rows"] if rows >= least) or (least,)}
    if variant.op is not Op.DECODE or not variant.needs_card:
        return None
    if variant.mode is not Mode.INT4_PER_TOKEN_HEAD:
        return PAIRED_DECODE
    return INT4_DECODE if request.group <= ROWS else None


def unfit(variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
    """Return why a config of `knobs` needs no trial; None where nothing tells."""
    if knobs(variant, request) is None:
        return None
    if lays_out(variant):
        return _staged(variant, device, request, config)
    if dict(config) == {**variant.default_config(device, request), "maxnreg": UNBOUND}:
        return f"{UNBOUND} registers are no bound: the default"
    return _bound(request, config) or _crowd(variant, device, request, config)


def lays_out(variant: Variant) -> bool:
    """Return whether a variant is prefill over laid out rows."""
    return variant.op is Op.PREFILL and variant.launcher.startswith("kvreg_cuda.")


def _staged(variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
    """More shared memory than a block may have: stages of K and V in 16 bits, and q but for int4's."""
    row_bytes = 2 * padded(request.head_size)
    rows = 0 if variant.mode is Mode.INT4_PER_TOKEN_HEAD else config["rows"]
    wanted, most = (rows + 2 * config["num_stages"] * config["tile"]) * row_bytes, device.shared_per_block_max_bytes
    return None if most is None or wanted <= most else f"{wanted} B of shared memory, at most {most} B"


def _bound(request: Request, config: Mapping[str, int]) -> str | None:
    """A bound on registers that binds nothing, or makes the compiler spill."""
    wanted, bound = _wanted(request, config), config.get("maxnreg", UNBOUND)
    if wanted is None or bound >= UNBOUND:
        return None
    if bound >= wanted:
        return f"{wanted} registers a thread are wanted, so that {bound} are no bound"
    if wanted > UNBOUND or bound < SPILLING * wanted:
        return f"{wanted} registers a thread are wanted, so that {bound} spill"
    return None


def _crowd(variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
    """More programs than a unit holds at once: the last ones begin when others have ended, and end late."""
    programs, facts = config["programs_per_unit"], device.facts
    wanted, most = _wanted(request, config), facts.get("registers_per_cu")
    if wanted is not None and isinstance(most, int):
        registers = -(-min(config["maxnreg"], wanted) // REGISTER_STEP) * REGISTER_STEP
        taken = programs * config["num_warps"] * max(device.warp_sizes, default=32) * registers
        if taken > most:
            return f"{programs} programs at once take {taken} registers, at most {most}"
    tile_bytes = config["tile"] * 2 * variant.mode.row_bytes(request.head_size)
    ahead, most = (config["num_stages"] - 1) // STAGES_A_TILE * tile_bytes, facts.get("shared_per_cu_bytes")
    if isinstance(most, int) and programs * ahead > most:
        return f"{programs} programs at once take {programs * ahead} B of shared memory, at most {most} B"
    return None


def _wanted(request: Request, config: Mapping[str, int]) -> int | None:
    """Return the registers of an int4 decode, the one that takes a bound; None where nothing was compiled."""
    if "maxnreg" not in config:
        return None
    return WANTED.get((padded(request.head_size), config["tile"], config["num_warps"]))
