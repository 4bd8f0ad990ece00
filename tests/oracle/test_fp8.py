"""The two fp8 formats against torch's types and against what a code's bits mean."""

from __future__ import annotations

import math

import pytest
import torch

from kvreg.oracle.fp8 import E4M3FN, E4M3FNUZ, Fp8, decode, encode, format_of, order, spacing

TYPES = pytest.mark.parametrize(
    ("fp8", "dtype"), [(E4M3FN, torch.float8_e4m3fn), (E4M3FNUZ, torch.float8_e4m3fnuz)], ids=["fn", "fnuz"]
)
CODES = torch.arange(256, dtype=torch.uint8)


@TYPES
def test_every_code_has_the_value_that_torchs_type_has(fp8: Fp8, dtype: torch.dtype) -> None:
    torch.testing.assert_close(decode(CODES, fp8), CODES.view(dtype).double(), rtol=0, atol=0, equal_nan=True)
    assert format_of(dtype) == fp8


def test_hand_made_codes_have_their_values() -> None:
    assert decode(torch.tensor([0x38, 0x7E, 0x01, 0x08, 0xB9], dtype=torch.uint8), E4M3FN).tolist() == [
        1.0,
        448.0,
        2.0**-9,
        2.0**-6,
        -1.125,
    ]
    assert decode(torch.tensor([0x40, 0x7E, 0x7F, 0x01], dtype=torch.uint8), E4M3FNUZ).tolist() == [
        1.0,
        224.0,
        240.0,
        2.0**-10,
    ]


@TYPES
def test_values_within_the_range_are_rounded_as_torch_rounds_them(fp8: Fp8, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    wide = (
        torch.exp2(torch.rand(20_000, generator=generator) * 22 - 12) * torch.randn(20_000, generator=generator).sign()
    )
    values = decode(CODES, fp8)
    exact = values[values.abs() <= fp8.qmax].sort().values
    halves = (exact[1:] + exact[:-1]) / 2
    x = torch.cat((wide.clamp(-fp8.qmax, fp8.qmax), exact.float(), halves.float()))

    assert torch.equal(encode(x, fp8), x.to(dtype).view(torch.uint8))


@TYPES
def test_the_nearest_of_all_values_is_taken_and_the_even_code_at_halves(fp8: Fp8, dtype: torch.dtype) -> None:
    x = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 40
    finite = decode(CODES, fp8)
    finite = finite[finite.abs() <= fp8.qmax]

    error = (decode(encode(x, fp8), fp8) - x).abs()
    assert torch.equal(error, (finite - x[:, None]).abs().amin(1))
    one = encode(torch.ones(()), fp8).item()
    assert encode(torch.tensor([1 + 1 / 16, 1 + 3 / 16, -1 - 1 / 16]), fp8).tolist() == [one, one + 2, one | 0x80]
    assert encode(torch.tensor([1 + 1 / 16 + 1e-9], dtype=torch.float64), fp8).item() == one + 1


@pytest.mark.parametrize(("fp8", "most"), [(E4M3FN, 448.0), (E4M3FNUZ, 224.0)], ids=["fn", "fnuz"])
def test_large_values_stop_at_the_largest_that_is_stored(fp8: Fp8, most: float) -> None:
    x = torch.tensor([most - 1, most, most + 1, 239.0, 1e30, -1e30], dtype=torch.float64)

    assert decode(encode(x, fp8), fp8).tolist() == [most, most, most, min(most, 240.0), most, -most]


@TYPES
def test_what_is_not_finite_is_stored_as_nan_not_as_the_largest_value(fp8: Fp8, dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf])

    assert encode(x, fp8).view(dtype).float().isnan().all()
    assert decode(encode(x, fp8), fp8).isnan().all()


@TYPES
def test_the_spacing_is_the_distance_between_neighbours(fp8: Fp8, dtype: torch.dtype) -> None:
    magnitudes = decode(CODES[:0x7F], fp8)
    gaps = magnitudes.diff()
    inside = magnitudes[:-1] + gaps * 0.3

    assert torch.equal(spacing(inside, fp8), gaps)
    assert torch.equal(spacing(-inside, fp8), gaps)
    assert torch.equal(spacing(magnitudes[:-1], fp8), gaps)


def test_neighbouring_values_have_neighbouring_places() -> None:
    values = decode(CODES, E4M3FN)
    finite = CODES[~values.isnan()]
    by_place = finite[order(finite).argsort()]

    assert (decode(by_place, E4M3FN).diff() >= 0).all()
    places = order(by_place)
    assert places.tolist() == sorted([*range(-0x7E, 0x7F), 0])
