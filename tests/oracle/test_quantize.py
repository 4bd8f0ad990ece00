"""The row formats, against scalar arithmetic and hand-made bytes."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.oracle import quantize_fp8, quantize_int4, quantize_int8
from kvreg.oracle.fp8 import E4M3FN, E4M3FNUZ, Fp8, decode
from kvreg.oracle.quantize import pack_codes, pack_scale, unpack_codes, unpack_scale


def largest_error(rows: torch.Tensor) -> float:
    codes, scale, zero = quantize_int4(rows)
    read = (codes.double() - zero[..., None]) * scale[..., None]
    return float((read - rows.double()).abs().max())


def scalar(row: list[float]) -> tuple[list[int], float, int]:
    """The definition on Python floats."""
    low, high = min(0.0, *row), max(0.0, *row)
    scale = max((high - low) / 15, 1e-6)
    zero = min(15, math.floor(-low / scale + 0.5))
    half_away = [math.copysign(math.floor(abs(x / scale + zero) + 0.5), x / scale + zero) for x in row]
    return [min(15, max(0, int(q))) for q in half_away], scale, zero


def test_uniform_around_zero_errs_by_at_most_half_a_step() -> None:
    rows = torch.rand((200, 96), dtype=torch.float64, generator=torch.Generator().manual_seed(4)) - 0.5

    assert largest_error(rows) <= 1 / 30


def test_five_to_six_errs_by_at_most_half_of_its_step_because_the_range_holds_zero() -> None:
    rows = torch.rand((200, 96), dtype=torch.float64, generator=torch.Generator().manual_seed(5)) + 5

    assert largest_error(rows) <= 0.2 + 1e-12
    assert largest_error(-rows) <= 0.2 + 1e-12


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=24))
def test_rows_are_quantized_as_scalar_arithmetic_says(row: list[float]) -> None:
    codes, scale, zero = quantize_int4(torch.tensor(row, dtype=torch.float64))

    assert (codes.tolist(), float(scale), int(zero)) == scalar(row)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=24))
def test_no_value_errs_by_more_than_half_a_step(row: list[float]) -> None:
    rows = torch.tensor(row, dtype=torch.float64)
    _, scale, _ = quantize_int4(rows)

    assert largest_error(rows) <= float(scale) * (0.5 + 1e-9) + 1e-12


def test_a_row_of_zeros_has_the_least_scale_and_reads_as_zeros() -> None:
    codes, scale, zero = quantize_int4(torch.zeros(64))

    assert (codes.abs().max().item(), scale.item(), zero.item()) == (0, 1e-6, 0)


def test_even_channels_lie_in_low_nibbles() -> None:
    codes = torch.tensor([1, 2, 3, 4, 15, 0], dtype=torch.uint8)

    assert pack_codes(codes).tolist() == [0x21, 0x43, 0x0F]
    assert torch.equal(unpack_codes(pack_codes(codes)), codes)


@pytest.mark.parametrize("zero", [0, 1, 7, 15])
@pytest.mark.parametrize("scale", [1e-6, 0.4, 0.123456789, 3.0e4])
def test_the_zero_point_lies_in_the_four_lowest_mantissa_bits(scale: float, zero: int) -> None:
    stored = pack_scale(torch.tensor([scale], dtype=torch.float64), torch.tensor([zero]))
    bits = struct.unpack("<I", struct.pack("<f", scale))[0]

    assert stored.view(torch.int32).item() == (bits & 0xFFFFFFF0) | zero
    read, point = unpack_scale(stored)
    assert point.item() == zero
    assert read.item() == struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFF0))[0]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=24))
def test_int8_rows_are_quantized_as_scalar_arithmetic_says(row: list[float]) -> None:
    codes, scale = quantize_int8(torch.tensor(row, dtype=torch.float64))

    due = max(max(map(abs, row)) / 127, 1e-6)
    assert float(scale) == due
    half_away = [math.copysign(math.floor(abs(x / due) + 0.5), x) for x in row]
    assert codes.tolist() == [max(-128, min(127, int(q))) for q in half_away]


def test_int8_halves_go_away_from_zero_and_the_largest_magnitude_is_127() -> None:
    codes, scale = quantize_int8(torch.tensor([-127.0, 0.5, -0.5, 1.5, 2.5, 126.4]))

    assert scale.item() == 1.0
    assert codes.tolist() == [-127, 1, -1, 2, 3, 126]


@pytest.mark.parametrize(("fp8", "qmax"), [(E4M3FN, 448.0), (E4M3FNUZ, 224.0)], ids=["fn", "fnuz"])
def test_the_largest_magnitude_of_an_fp8_row_is_the_formats_maximum(fp8: Fp8, qmax: float) -> None:
    rows = torch.randn((50, 40), generator=torch.Generator().manual_seed(2))
    codes, scale = quantize_fp8(rows, fp8)

    torch.testing.assert_close(scale, rows.double().abs().amax(-1) / qmax)
    assert (decode(codes, fp8).abs().amax(-1) == qmax).all()
    error = (decode(codes, fp8) * scale[:, None] - rows.double()).abs()
    assert (error <= rows.double().abs() / 16 + scale[:, None] * 2.0**-10).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_has_the_scale_nan_and_its_neighbours_do_not(bad: float) -> None:
    rows = torch.ones((3, 8))
    rows[1, 5] = bad

    for _, scale in (quantize_int8(rows), quantize_fp8(rows, E4M3FN), quantize_fp8(rows, E4M3FNUZ)):
        assert scale.isnan().tolist() == [False, True, False]


def test_rows_of_zeros_have_the_least_scale_in_every_format() -> None:
    for codes, scale in (quantize_int8(torch.zeros(8)), quantize_fp8(torch.zeros(8), E4M3FN)):
        assert (codes.tolist(), scale.item()) == ([0] * 8, 1e-6)
