"""The plain torch backend's 8-bit rows: rounding, saturation and what is no number, in cases known beforehand."""

from __future__ import annotations

import pytest
import torch

from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg_cpu import eight_bit

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
NOT_FINITE = (torch.nan, torch.inf, -torch.inf)


def steps(dtype: torch.dtype) -> torch.Tensor:
    """Every finite value of an fp8 type within what writers use, in order."""
    values = torch.arange(256).to(torch.uint8).view(dtype).float()
    return values[values.abs() <= eight_bit.FP8_QMAX[dtype]].unique()


def test_int8_codes_round_half_away_from_zero():
    row = torch.tensor([[127.0, 0.5, -0.5, 1.5, -1.5, 2.49, -126.5, 0.0]])

    codes, scales = eight_bit.quantize_int8(row)

    assert codes.tolist() == [[127, 1, -1, 2, -2, 2, -127, 0]]
    assert scales.tolist() == [1.0]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_int8_rows_come_back_within_half_a_step(size):
    rows = torch.randn(200, 72) * size

    codes, scales = eight_bit.quantize_int8(rows)

    assert codes.abs().max() <= 127
    assert ((eight_bit.dequantize(codes, scales) - rows).abs() <= scales[:, None] * 0.5001).all()
    assert (scales >= eight_bit.LEAST_SCALE).all()


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_codes_are_the_nearest_value_and_the_even_one_of_two(dtype):
    values = steps(dtype)
    middles = (values[1:] + values[:-1]) / 2
    rows = torch.cat((values, middles, torch.randn(4000) * 60)).clamp(values[0], values[-1])

    codes = eight_bit.quantize_fp8_by(rows, torch.tensor(1.0), dtype)

    above = torch.searchsorted(values, rows).clamp(1, len(values) - 1)
    nearest = torch.minimum((values[above] - rows).abs(), (values[above - 1] - rows).abs())
    assert torch.equal((codes.float() - rows).abs(), nearest)
    assert not (codes.view(torch.uint8)[len(values) : len(values) + len(middles)] & 1).any()


@pytest.mark.parametrize(("dtype", "qmax"), [*zip(FP8, (448.0, 224.0), strict=True)])
def test_fp8_rows_reach_the_largest_value_and_never_pass_it(dtype, qmax):
    rows = torch.randn(300, 40) * torch.logspace(-20, 20, 300)[:, None]

    codes, scales = eight_bit.quantize_fp8(rows, dtype)

    assert (codes.float().abs().amax(-1) == qmax).logical_or(scales == eight_bit.LEAST_SCALE).all()
    back = eight_bit.dequantize(codes, scales)
    assert ((back - rows).abs() <= rows.abs() * 0.0626 + scales[:, None] * 2**-9).all()


@pytest.mark.parametrize(("dtype", "qmax"), [*zip(FP8, (448.0, 224.0), strict=True)])
def test_values_beyond_a_tensor_scale_saturate(dtype, qmax):
    rows = torch.tensor([1e4, -1e4, 3e38, -3e38, 0.9 * qmax])

    codes = eight_bit.quantize_fp8_by(rows, torch.tensor(0.5), dtype)

    assert codes.float().tolist() == [qmax, -qmax, qmax, -qmax, qmax]


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_row_that_is_not_finite_has_a_nan_scale_and_the_same_codes_everywhere(value):
    rows = torch.randn(3, 32)
    rows[1, 7] = value

    for codes, scales in (eight_bit.quantize_int8(rows), *(eight_bit.quantize_fp8(rows, dtype) for dtype in FP8)):
        assert scales.isnan().tolist() == [False, True, False]
        assert not codes[1].float().any()


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("dtype", FP8)
def test_under_a_tensor_scale_a_value_that_is_not_finite_becomes_nan_and_no_other(dtype, value):
    rows = torch.randn(3, 32)
    rows[1, 7] = value

    found = eight_bit.quantize_fp8_by(rows, torch.tensor(0.1), dtype).float().isnan()

    assert found.nonzero().tolist() == [[1, 7]]


@pytest.mark.parametrize("mode", ["int8_per_token_head", "fp8_per_token_head", "fp8_per_tensor"])
def test_rows_of_zeros_and_of_one_value_come_back_exactly(mode, select):
    cache = KVCache.allocate(select("cpu", mode, 40, dtype="fp32"), 2)
    k, v = torch.zeros(1, 2, 40), torch.full((1, 2, 40), -3.0)

    write(cache, k, v, torch.tensor([17]))

    assert not cache.view.k[1, 1].float().any()
    scale = 1.0 if cache.view.v_scale is None else cache.view.v_scale[1, 1, 0]
    torch.testing.assert_close(cache.view.v[1, 1].float() * scale, v[0], atol=1e-6, rtol=1e-6)
