"""The variants that only NVIDIA cards have; the portable ones stand beside them. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvreg.core.devices import Device
from kvreg.core.formats import default_format
from kvreg.core.layouts import default
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId
from kvreg_triton.configs import padded
from kvreg_triton.variants import FEATURES

ROWS = 8
"""Query rows of a program of int4 decode, which half of a matrix instruction holds; wider groups take PAIRED_ROWS."""
LEAST_WRITE_VALUES = 512
"""Values of a write's program: two products of 16 lines; kvreg_cuda.write_int4."""
PAIRED_ROWS = 16
"""Query rows of a matrix instruction; wider groups would spill their accumulators and take the portable kernel."""

LAID_OUT_GROUP = 64
"""Widest group of prefill over laid out rows: the rows of a block, which hold a whole group."""

_EIGHT_BIT = {Mode.FP8_PER_TENSOR: "fp8t", Mode.INT8_PER_TOKEN_HEAD: "int8", Mode.FP8_PER_TOKEN_HEAD: "fp8h"}
_ALL = {Mode.NONE: "none", **_EIGHT_BIT, Mode.INT4_PER_TOKEN_HEAD: "int4"}


def _config(device: Device, request: Request) -> Mapping[str, int]:
    """One warp, so that row reductions stay in registers; the best of small grids on H200s (docs/int4-decode.md).

    Small tiles in few registers: 12 programs a unit find room, and two tiles are in flight in each. A group of 1,
    whose eight subsets need tiles of 64, is faster with one in flight.
    """
    width = padded(request.head_size)
    config = {"rows": ROWS, "tile": 64, "num_warps": 1, "num_stages": 5, "programs_per_unit": 8, "chunk": 512}
    if request.group > ROWS:
        warps = 1 if width <= 128 else 2 if width <= 256 else 8
        return config | {"rows": PAIRED_ROWS, "tile": 32, "num_warps": warps}
    if width <= 64:
        return config | {"maxnreg": 168}
    if width <= 128:
        return config | ({"num_stages": 3} if request.group == 1 else {"tile": 32, "maxnreg": 168})
    if width <= 256:
        return config | {"tile": 32}
    return config | {"tile": 32, "num_warps": 2, "num_stages": 3, "programs_per_unit": 4}


def _paired_config(device: Device, request: Request) -> Mapping[str, int]:
    """The best of a grid on an H200 (docs/performance.md): two tiles of 32 KB in flight in each of two programs.

    Narrow heads are fastest with one warp, wide ones with as many as keep the accumulators in registers.
    """
    width = padded(request.head_size)
    config = {"rows": PAIRED_ROWS, "num_stages": 5, "chunk": 512}
    if width <= 64:
        return config | {"tile": 64, "num_warps": 1, "programs_per_unit": 8}
    if width <= 128:
        return config | {"tile": 128, "num_warps": 4, "programs_per_unit": 2}
    if width <= 256:
        return config | {"tile": 32, "num_warps": 2, "programs_per_unit": 4}
    return config | {"tile": 32, "num_warps": 4, "programs_per_unit": 1}


def _prefill_config(mode: Mode) -> Callable[[Device, Request], Mapping[str, int]]:
    def choose(device: Device, request: Request) -> Mapping[str, int]:
        """The best of a grid on an H200 (docs/performance.md): two blocks of four warps on a unit, by turns.

        The more it takes to unpack a row, the sooner it pays to do it once: of 8 sequences of 8192 tokens int4 gains
        from one block of query rows on, 8 bits from two, and 16 bits, which only become adjacent, from eight.
        """
        width, int4 = padded(request.head_size), mode is Mode.INT4_PER_TOKEN_HEAD
        rows = max(64 if width <= 256 or int4 else 32, padded(request.group))
        return {
            "rows": rows,
            "tile": 128 if width <= 64 else 64 if width <= 128 else 32,
            "num_warps": 4 if rows * width <= 64 * 256 else 8,
            # int4 keeps q in registers, which leaves room for a third stage of two wider blocks.
            "num_stages": 3 if width <= 128 or (int4 and width <= 256) else 2,
            "blocks_laid_out": 1 if int4 else 8 if mode is Mode.NONE else 2,
        }

    return choose


def _write_config(device: Device, request: Request) -> Mapping[str, int]:
    """One warp, in which no value changes threads, of 16 rows, whose bytes of V make words: the best of a grid.

    Of heads above 256 a warp's registers hold 8 rows.
    """
    return {"rows": 16 if padded(request.head_size) <= 256 else 8, "num_warps": 1, "num_stages": 1}


def _stored(mode: Mode) -> Callable[[Device, int], Format]:
    def describe(device: Device, head_size: int) -> Format:
        return default_format(mode, device, head_size, default(mode), "bf16")

    return describe


def own() -> tuple[Variant, ...]:
    """Return the variants of this package; on a card their kernels hold inline PTX."""
    paired = (_paired_decode(mode, short) for mode, short in _EIGHT_BIT.items())
    return (_int4_decode(), *paired, _int4_write(), *(_prefill(mode, short) for mode, short in _ALL.items()))


def _prefill(mode: Mode, short: str) -> Variant:
    """Return prefill over rows that are laid out first; tiles come by the tensor copies of sm_90.

    Newer archs have them too; what they want of launch parameters has not been tried.
    """
    int4 = mode is Mode.INT4_PER_TOKEN_HEAD
    return Variant(
        id=VariantId(f"cuda-{short}-prefill", 1),
        op=Op.PREFILL,
        mode=mode,
        family="triton",
        accuracy="exact",
        launcher=f"kvreg_cuda.prefill_launching:{'PREFILL_INT4' if int4 else 'PREFILL_ROWS'}",
        kernels=(
            "kvreg_cuda.laying_out:find_peaks",
            "kvreg_cuda.laying_out:lay_out",
            "kvreg_cuda.prefill:attend",
            f"kvreg_cuda.prefill_left:{'attend_int4_left' if int4 else 'attend_rows_left'}",
            "kvreg_cuda.prefill_launching:LaidOut",
        ),
        format=_stored(mode),
        default_config=_prefill_config(mode),
        constraints=Constraints(
            features=tuple(word for word in FEATURES if word != "multi_query_split"),
            group_max=LAID_OUT_GROUP,
            needs_fp8="e4m3" if mode.is_fp8 else None,
            archs=("sm_90",),
        ),
        options=("num_warps", "num_stages"),
    )


def _int4_write() -> Variant:
    """Return the write whose rotation begins on matrix units; bf16 takes those of sm_80."""
    return Variant(
        id=VariantId("cuda-int4-write", 1),
        op=Op.WRITE,
        mode=Mode.INT4_PER_TOKEN_HEAD,
        family="triton",
        accuracy="exact",
        launcher="kvreg_cuda.write_int4:WRITE",
        kernels=("kvreg_cuda.write_int4:write", "kvreg_triton.launch:Write"),
        format=_stored(Mode.INT4_PER_TOKEN_HEAD),
        default_config=_write_config,
        constraints=Constraints(features=FEATURES, min_capability=(8, 0)),
        needs_card=True,
        options=("num_warps",),
    )


def _int4_decode() -> Variant:
    """Return decode on integer matrix units, which came with sm_80.

    Where the query tokens of a sequence do not fit 16 rows, each block of rows reads the cache, all but one from L2.
    """
    return Variant(
        id=VariantId("cuda-int4-decode", 1),
        op=Op.DECODE,
        mode=Mode.INT4_PER_TOKEN_HEAD,
        family="triton",
        accuracy="exact",
        launcher="kvreg_cuda.decode_int4:DECODE",
        kernels=(
            "kvreg_cuda.decode_int4:attend",
            "kvreg_cuda.decode_int4:attend_share",
            "kvreg_cuda.joining:join",
            "kvreg_cuda.joining:join_shares",
            "kvreg_cuda.joining:Joined",
            "kvreg_triton.launch:Decode",
        ),
        format=_stored(Mode.INT4_PER_TOKEN_HEAD),
        default_config=_config,
        constraints=Constraints(
            features=FEATURES,
            group_max=PAIRED_ROWS,
            min_capability=(8, 0),
        ),
        needs_card=True,
        options=("num_warps", "num_stages", "maxnreg"),
    )


def _paired_decode(mode: Mode, short: str) -> Variant:
    """Return decode over pairs of 8-bit codes; fp8 takes the conversion to fp16 of sm_89."""
    return Variant(
        id=VariantId(f"cuda-{short}-decode", 1),
        op=Op.DECODE,
        mode=mode,
        family="triton",
        accuracy="exact",
        launcher="kvreg_cuda.decode_8bit:DECODE",
        kernels=(
            "kvreg_cuda.decode_8bit:attend",
            "kvreg_cuda.decode_8bit:attend_share",
            "kvreg_cuda.joining_rows:join",
            "kvreg_cuda.joining_rows:join_shares",
            "kvreg_cuda.joining_rows:JoinedRows",
            "kvreg_triton.launch:Decode",
        ),
        format=_stored(mode),
        default_config=_paired_config,
        constraints=Constraints(
            features=FEATURES,
            group_max=PAIRED_ROWS,
            needs_fp8="e4m3" if mode.is_fp8 else None,
            min_capability=(8, 9) if mode.is_fp8 else (8, 0),
        ),
        needs_card=True,
        options=("num_warps", "num_stages"),
    )
