"""How far stored rows are from what their format makes of the input, one mode at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvreg.core.modes import Mode
from kvreg.oracle import Cache, rotate
from kvreg.oracle.caches import as_bytes, stored_rows, tensor_scale
from kvreg.oracle.fp8 import decode, encode, format_of, order, spacing
from kvreg.oracle.quantize import ideal_scale, quantize_int8, symmetric_scale, unpack_scale

INF = float("inf")


class RowErrors(NamedTuple):
    """Errors of rows, each (rows, kv_heads) float64; zeros where a mode has nothing of the kind."""

    step: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    code: torch.Tensor


def errors_of(cache: Cache, side: str, rows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> RowErrors:
    """Return the errors of one side, "k" or "v", in any mode but `none`.

    `rows`: (rows, kv_heads, head_size), what was written; `page`, `slot`: (rows,) int64, where. What is nan where it
    should be finite is an error of inf.
    """
    judge = {
        Mode.INT4_PER_TOKEN_HEAD: _int4,
        Mode.INT8_PER_TOKEN_HEAD: _int8,
        Mode.FP8_PER_TOKEN_HEAD: _fp8_row,
        Mode.FP8_PER_TENSOR: _fp8_tensor,
    }[cache.mode]
    return RowErrors(*(x.nan_to_num(nan=INF, posinf=INF) for x in judge(cache, side, rows, page, slot)))


def _scales(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    plane = cache.k_scale if side == "k" else cache.v_scale
    assert plane is not None  # a cache of these modes without scales cannot be made
    return plane[page, slot]


def _int4(cache: Cache, side: str, rows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> RowErrors:
    due = rotate(rows, cache.head_size)
    ideal, point = ideal_scale(due)
    scale, zero = unpack_scale(_scales(cache, side, page, slot))
    step = (stored_rows(cache, side, page, slot) - due).abs().amax(-1) / scale.abs()
    finite = due.isfinite().all(-1)  # what a non-finite row becomes is not defined, only that it stays in its slot
    none = torch.zeros_like(step)
    return RowErrors(
        torch.where(finite, step, 0.0),
        torch.where(finite, (scale / ideal - 1).abs(), 0.0),
        torch.where(finite, (zero - point).abs(), 0.0),
        none,
    )


def _scale_error(scale: torch.Tensor, ideal: torch.Tensor) -> torch.Tensor:
    """Return the relative error; a row with a value that is not finite must have the scale nan."""
    visible = torch.where(scale.isnan(), 0.0, INF)
    return torch.where(ideal.isnan(), visible, (scale / ideal - 1).abs())


def _int8(cache: Cache, side: str, rows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> RowErrors:
    due = rows.to(torch.float64)
    codes, ideal = quantize_int8(due)
    scale = _scales(cache, side, page, slot).to(torch.float64)
    stored = (cache.k if side == "k" else cache.v)[page, slot].to(torch.float64)
    step = (stored - due / scale[..., None]).abs().amax(-1)
    code = (stored - codes.to(torch.float64)).abs().amax(-1)
    finite = ideal.isfinite()
    return RowErrors(
        torch.where(finite, step, 0.0),
        _scale_error(scale, ideal),
        torch.zeros_like(step),
        torch.where(finite, code, 0.0),
    )


def _fp8_errors(
    cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor, scaled: torch.Tensor, ideal: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (step, code) errors of every element, the shape of `scaled`.

    `scaled`: the input over the stored scale, of which the step is judged; `ideal`: over the ideal one, of which the
    code is.
    """
    data = cache.k if side == "k" else cache.v
    fp8 = format_of(data.dtype)
    codes = as_bytes(data)[page, slot]
    due = scaled.clamp(-fp8.qmax, fp8.qmax)
    step = (decode(codes, fp8) - due).abs() / spacing(due.nan_to_num(), fp8)
    return step, (order(codes) - order(encode(ideal, fp8))).abs().to(torch.float64)


def _fp8_row(cache: Cache, side: str, rows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> RowErrors:
    due = rows.to(torch.float64)
    ideal = symmetric_scale(due, format_of(cache.k.dtype).qmax)
    scale = _scales(cache, side, page, slot).to(torch.float64)
    step, code = _fp8_errors(cache, side, page, slot, due / scale[..., None], due / ideal[..., None])
    finite = ideal.isfinite()
    step, code = (torch.where(finite, x.amax(-1), 0.0) for x in (step, code))
    return RowErrors(step, _scale_error(scale, ideal), torch.zeros_like(step), code)


def _fp8_tensor(cache: Cache, side: str, rows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> RowErrors:
    scaled = rows.to(torch.float64) / tensor_scale(cache, side)
    step, code = _fp8_errors(cache, side, page, slot, scaled, scaled)
    data = cache.k if side == "k" else cache.v
    lost = decode(as_bytes(data)[page, slot], format_of(data.dtype)).isnan()
    # A value that is not finite must be nan; the others of its row may be too, or be what they are.
    finite = scaled.isfinite()
    spoiled = ~finite.all(-1, keepdim=True) & lost
    step = torch.where(spoiled, 0.0, torch.where(finite, step, INF)).nan_to_num(nan=INF).amax(-1)
    code = torch.where(spoiled | ~finite | lost, 0.0, code).amax(-1)
    return RowErrors(step, torch.zeros_like(step), torch.zeros_like(step), code)
