"""Prefill in up to four launches: peaks found, rows laid out, attention over them, and over pages for what is left.

What is laid out takes memory of its own for the time of a call, as many heads at a time as MOST_BYTES hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kvreg.core.formats import E4M3FN, QMAX
from kvreg.core.modes import Mode
from kvreg.runtime.launchers import AttendCall
from kvreg_cuda.configs import paged_prefill
from kvreg_cuda.laying_out import PAD, find_peaks, lay_out
from kvreg_cuda.prefill import attend
from kvreg_cuda.prefill_left import attend_int4_left, attend_rows_left
from kvreg_triton.launch import Prefill, launch_options, operand_types, rows_of, scales_of, shape_constants, submit

MOST_BYTES = 256 << 20
"""Memory for rows that are laid out: all heads of four Llama 3 8B prompts of 16384 tokens, or two heads of one of
262144. An estimate of what an engine can spare; more takes turns over heads, a turn more costs some microseconds."""

LAY_VALUES = 4096
"""Values of K, and of V, of a program that lays rows out: what 128 threads hold in registers beside their float32."""

PEAK_TILE = 512
"""Tokens of a program that looks for the largest scales."""

_TORCH = {tl.float16: torch.float16, tl.bfloat16: torch.bfloat16, tl.float32: torch.float32}


def span_of(mode: Mode) -> float:
    """Return the power of two by which a sequence's largest scale is taken: its largest code stays below 2**15."""
    codes = {Mode.INT4_PER_TOKEN_HEAD: 15.0, Mode.INT8_PER_TOKEN_HEAD: 128.0, Mode.FP8_PER_TOKEN_HEAD: QMAX[E4M3FN]}
    return 2.0 ** math.floor(math.log2(2.0**14 / codes[mode])) if mode in codes else 1.0


def rows_type(dtype: torch.dtype, mode: Mode) -> tl.dtype:
    """Return the type of laid out rows: the model's where they are that, else fp16."""
    return operand_types(dtype, mode)[0 if mode is Mode.NONE else 1]


NOTHING_LAID_OUT = (1 << 30, 0)
"""Query rows from which, and tokens up to which, a sequence is laid out: none is."""


class Leaving:
    """A kernel that leaves to another launch what is laid out."""

    def __init__(self, kernel: Any, laid_out: tuple[int, int]) -> None:
        self.kernel, self.laid_out = kernel, laid_out

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        launch = self.kernel[grid]
        return lambda *args, **meta: launch(*args, *self.laid_out, **meta)

    def warmup(self, *args: Any, grid: tuple[int, ...], **meta: Any) -> Any:
        """Compile as triton.JITFunction.warmup does."""
        return self.kernel.warmup(*args, *self.laid_out, grid=grid, **meta)


class LaidOut(Prefill):
    """Launches attention over whole contexts, over laid out rows where a sequence has many query rows.

    Which way a sequence goes depends on its own query rows alone, so that its result does not depend on the batch.
    """

    only_submits = False  # it makes and clears memory, too

    def __init__(self, find_peaks: Any, lay_out: Any, attend: Any, pages: Any) -> None:
        super().__init__(pages)
        self.find_peaks, self.lay_out, self.attend = find_peaks, lay_out, attend

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch; see kvreg.runtime.launchers.AttendLauncher."""
        cache, tokens, n_seqs = call.cache, call.q.shape[0], call.cu_q.shape[0] - 1
        group = call.q.shape[1] // cache.kv_heads
        least = config["blocks_laid_out"] * (config["rows"] // group)
        if tokens < least:
            self._attend_left(call, NOTHING_LAID_OUT)
            return
        rows = Rows(call)
        for first_seq, first_head, peaks in rows.turns():
            seqs, heads = min(rows.seqs, n_seqs - first_seq), min(rows.heads, cache.kv_heads - first_head)
            turn = Turn(rows, peaks, first_seq, seqs, first_head, heads, least)
            self._lay_out(call, turn)
            self._attend(call, turn, config)
        # How the rows of q divide is in the card's memory: what may be left is launched for.
        self._attend_left(call, (least, rows.room - PAD.value))

    def _attend_left(self, call: AttendCall, laid_out: tuple[int, int]) -> None:
        cache = call.cache
        paged = paged_prefill(cache.mode, cache.head_size, call.q.shape[1] // cache.kv_heads)
        Prefill(Leaving(self.kernel, laid_out)).launch(call, paged)

    def _lay_out(self, call: AttendCall, turn: Turn) -> None:
        cache, features, rows = call.cache, call.features, turn.rows
        where = (
            call.page_table, call.seq_lens, call.cu_q, *turn.places, features.window or 0, call.page_table.stride(0)
        )  # fmt: skip
        # A prefix range may hold any key.
        windowed = features.window is not None and features.prefix_ranges is None
        shape, packed = shape_constants(cache), cache.mode is Mode.INT4_PER_TOKEN_HEAD
        shared = {"PAGE": cache.page, "WINDOW": windowed, "num_warps": 4, "num_stages": 1}
        tile = max(16, LAY_VALUES // rows.width)
        if cache.mode.has_scales:
            submit(
                self.find_peaks,
                (triton.cdiv(rows.room, PEAK_TILE), turn.seqs, turn.heads),
                (turn.peaks, *where, *scales_of(cache)),
                {"TILE": PEAK_TILE, "ZERO_POINTS": packed, **shared},
            )
        submit(
            self.lay_out,
            (triton.cdiv(rows.room, tile), turn.seqs, turn.heads),
            (rows.k, rows.v, rows.k_scales, rows.spoiled, turn.peaks, *where, *rows_of(cache), *scales_of(cache)),
            {
                **{name: shape[name] for name in ("HEAD", "WIDTH", "ALIGN")},
                "V_BYTE": shape.get("V_BYTE", 1),
                "TILE": tile,
                "PACKED": packed,
                "SCALED": cache.mode.has_scales,
                "SPAN": span_of(cache.mode),
                **shared,
            },
        )

    def _attend(self, call: AttendCall, turn: Turn, config: Mapping[str, int]) -> None:
        q, out, cache, features, rows = call.q, call.out, call.cache, call.features, turn.rows
        tokens, n_seqs, group = q.shape[0], call.cu_q.shape[0] - 1, q.shape[1] // cache.kv_heads
        # Pointers that the kernel does not read (features that are off, lse) are given others to stand in.
        spare = rows.spoiled if call.lse is None else call.lse
        tile = [config["tile"], rows.width]
        ranges = features.prefix_ranges
        per_sequence = isinstance(features.causal, torch.Tensor)
        operand = rows_type(q.dtype, cache.mode)
        shape = shape_constants(cache)
        submit(
            self.attend,
            (tokens // (config["rows"] // group) + n_seqs, turn.heads),
            (
                q, out, spare, TensorDescriptor.from_tensor(rows.k, tile), TensorDescriptor.from_tensor(rows.v, tile),
                rows.k_scales, rows.spoiled, turn.peaks, call.seq_lens, call.cu_q, tokens, n_seqs, group,
                cache.kv_heads, *turn.places, int(call.lse is not None), call.scale,
                q.stride(0), q.stride(1), out.stride(0), out.stride(1),
                features.causal if per_sequence else out, features.window or 0, features.softcap or 0.0,
                out if features.sinks is None else features.sinks, out if features.alibi is None else features.alibi,
                out if ranges is None else ranges, out if cache.tensor_scales is None else cache.tensor_scales,
            ),
            {
                "HEAD": cache.head_size,
                "WIDTH": rows.width,
                "BLOCK": shape.get("BLOCK", 1),
                "LEVELS": shape.get("LEVELS", 0),
                "ROWS": config["rows"],
                "TILE": config["tile"],
                "STAGES": config["num_stages"],
                "CAUSAL": 2 if per_sequence else int(bool(features.causal)),
                "WINDOW": features.window is not None,
                "SOFTCAP": features.softcap is not None,
                "SINKS": features.sinks is not None,
                "ALIBI": features.alibi is not None,
                "RANGES": 0 if ranges is None else ranges.shape[1],
                "TENSOR_SCALED": cache.tensor_scales is not None,
                "SPAN": span_of(cache.mode),
                "ROTATED": cache.mode is Mode.INT4_PER_TOKEN_HEAD,
                "RANGED": cache.mode is not Mode.NONE,
                "COMPUTE": operand,
                "VALUES": operand,
            }
            | {name: value for name, value in launch_options(config).items() if name != "blocks_laid_out"},
        )  # fmt: skip


class Rows:
    """Memory for the laid out rows of as many heads and sequences as MOST_BYTES hold; see kvreg_cuda.laying_out."""

    def __init__(self, call: AttendCall) -> None:
        cache, n_seqs = call.cache, call.cu_q.shape[0] - 1
        longest = call.page_table.shape[1] * cache.page
        if call.max_context:
            longest = min(longest, call.max_context)
        self.room = longest + PAD.value
        self.width = triton.next_power_of_2(cache.head_size)
        dtype = _TORCH[rows_type(call.q.dtype, cache.mode)]
        fit = max(1, MOST_BYTES // (self.room * self.width * 2 * dtype.itemsize))
        self.seqs = min(n_seqs, fit)
        # Turns of equal heads: each fills the card for as long as its last programs take.
        turns = triton.cdiv(cache.kv_heads, max(1, fit // n_seqs))
        self.heads = triton.cdiv(cache.kv_heads, turns)
        rows, place = self.heads * self.seqs * self.room, call.q.device
        self.k, self.v = (torch.empty((rows, self.width), dtype=dtype, device=place) for _ in range(2))
        self.spoiled = torch.empty(rows, dtype=torch.float32, device=place)
        packed = cache.mode is Mode.INT4_PER_TOKEN_HEAD
        self.k_scales = torch.empty_like(self.spoiled) if packed else self.spoiled  # which no kernel reads there
        self._firsts = tuple(itertools.product(range(0, n_seqs, self.seqs), range(0, cache.kv_heads, self.heads)))
        # Of each turn its own, at multiples of 16 bytes.
        places = triton.cdiv(2 * self.heads * self.seqs, 4) * 4
        self._peaks = torch.zeros((len(self._firsts), places), dtype=torch.int32, device=place)

    def turns(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the first sequence and the first KV head of each turn, and its peaks, all 0."""
        for (seq, head), peaks in zip(self._firsts, self._peaks, strict=True):
            yield seq, head, peaks


@dataclass(frozen=True, slots=True)
class Turn:
    """Sequences and KV heads that are laid out at a time."""

    rows: Rows
    peaks: torch.Tensor
    first_seq: int
    seqs: int
    first_head: int
    heads: int
    least: int
    """Query rows of a sequence from which it is laid out."""

    @property
    def places(self) -> tuple[int, ...]:
        """Where the turn begins and its rows lie, as both kernels take it."""
        return self.seqs, self.first_seq, self.first_head, self.rows.room, self.least


PREFILL_ROWS = LaidOut(find_peaks, lay_out, attend, attend_rows_left)
PREFILL_INT4 = LaidOut(find_peaks, lay_out, attend, attend_int4_left)
