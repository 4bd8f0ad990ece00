"""Which comparisons prove something: the rules of the audit, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.pytest import soundness
from kvreg.pytest.comparisons import KNOWN, pairs
from kvreg.pytest.soundness import CONSTANT, EXACT, INTEGERS, SMALL, UNREADABLE, correlation, judge

RNG = np.random.default_rng(7)
ROWS = RNG.standard_normal((16, 8))


def passes(expected, rtol, atol):
    return judge(expected, expected, rtol, atol).passes


def test_a_tight_comparison_is_sound():
    verdict = judge(ROWS + 1e-9, ROWS, 1e-7, 1e-8)

    assert verdict.sound
    assert verdict.passes == ()
    assert verdict.correlation > 0.999


@pytest.mark.parametrize(
    ("expected", "atol", "due"),
    [
        (ROWS, np.abs(ROWS).max(), "zeros"),
        (ROWS, np.abs(ROWS - ROWS.mean()).max(), "the mean"),
        (ROWS, np.abs(ROWS - ROWS.mean(0)).max(), "the mean row"),
        (ROWS, np.abs(ROWS - np.roll(ROWS, 8, 0)).max(), "shuffled rows"),
    ],
    ids=["zeros", "mean", "mean row", "shuffled"],
)
def test_each_wrong_result_is_named_from_the_tolerance_on_that_takes_it(expected, atol, due):
    assert due in passes(expected, 0.0, atol * 1.0001)
    assert due not in passes(expected, 0.0, atol * 0.9999)


def test_rtol_counts_as_the_comparisons_do():
    assert "zeros" in passes(ROWS, 1.0, 0.0)
    assert "zeros" not in passes(ROWS, 0.999, 0.0)


def test_a_result_that_passes_and_does_not_correlate_is_unsound():
    verdict = judge(RNG.standard_normal(64), np.linspace(-1, 1, 64), 0.0, 9.0)

    assert verdict.uncorrelated
    assert not verdict.sound


def test_int4_rounding_of_normal_rows_still_correlates_enough():
    scale = (ROWS.max(1, keepdims=True) - ROWS.min(1, keepdims=True)) / 15
    verdict = judge(np.round(ROWS / scale) * scale, ROWS, 0.0, 0.2)

    assert verdict.sound
    assert verdict.correlation > soundness.LEAST_CORRELATION


@pytest.mark.parametrize(
    ("actual", "expected", "rtol", "atol", "due"),
    [
        (ROWS, ROWS, 0.0, 0.0, EXACT),
        (np.arange(99), np.arange(99), 1.0, 99.0, INTEGERS),
        (np.ones(99, bool), np.ones(99, bool), 1.0, 1.0, INTEGERS),
        (ROWS[0, :7], ROWS[0, :7], 1.0, 9.0, SMALL),
        (3.0, 3.1, 0.0, 1.0, SMALL),
        (np.full(99, np.nan), np.full(99, np.nan), 0.0, 1.0, SMALL),
        (np.zeros(99), np.zeros(99), 0.0, 1.0, CONSTANT),
        (np.array(["a"] * 9), np.array(["a"] * 9), 0.0, 1.0, UNREADABLE),
    ],
    ids=["exact", "integers", "booleans", "few", "scalars", "nan", "zeros", "texts"],
)
def test_what_is_exempt_says_by_which_rule(actual, expected, rtol, atol, due):
    verdict = judge(actual, expected, rtol, atol)

    assert verdict.exempt == due
    assert verdict.sound


def test_a_constant_is_held_against_zeros_alone():
    ones = np.ones(64)

    assert judge(ones, ones, 0.0, 0.5).sound
    assert judge(ones, ones, 0.0, 1.0).passes == ("zeros",)
    assert judge(ones, ones + np.float32(1e-8), 0.0, 0.5, eps=2.0**-23).correlation is None


def test_rows_that_are_alike_may_be_exchanged():
    alike = np.tile(ROWS[0], (16, 1)) + 1e-3 * ROWS

    assert passes(alike, 0.0, 0.02) == ()


def test_places_where_nothing_is_finite_do_not_count():
    holed = ROWS.copy()
    holed[3, 2] = np.nan
    holed[4, 1] = np.inf

    assert judge(holed, holed, 0.0, 1e-3).sound
    assert "zeros" in passes(holed, 0.0, 10.0)


def test_complex_values_are_two_numbers_each():
    values = ROWS + 1j * RNG.standard_normal(ROWS.shape)

    assert judge(values, values, 0.0, 1e-3).sound
    assert "zeros" in passes(values, 0.0, 10.0)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from(["random", "signs", "against", "mean"]),
)
def test_nothing_that_passes_the_widest_sound_tolerance_correlates_less(seed, scale, offset, errors):
    rng = np.random.default_rng(seed)
    expected = scale * (offset + rng.standard_normal((4, rng.integers(2, 40))))
    widest = judge(expected, expected, 0.0, scale).widest
    off = {
        "random": rng.uniform(-1, 1, expected.shape),
        "signs": rng.choice([-1.0, 1.0], expected.shape),
        "against": -np.sign(expected - expected.mean()),
        "mean": np.clip((expected.mean() - expected) / widest, -1, 1),
    }[errors]

    assert correlation(expected + widest * off, expected) >= soundness.LEAST_CORRELATION
    assert judge(expected, expected, 0.0, widest).passes == ()


TORCH, NUMPY, TORCH_ASKS, NUMPY_ASKS = KNOWN


def test_tolerances_are_read_as_each_comparison_takes_them():
    def read(comparison, *arguments, **named):
        (pair,) = pairs(comparison, arguments, named)
        return pair.rtol, pair.atol

    single = ROWS.astype(np.float32)
    assert read(NUMPY, ROWS, ROWS) == (1e-7, 0.0)
    assert read(NUMPY, ROWS, ROWS, 1e-3, 1e-4) == (1e-3, 1e-4)
    assert read(NUMPY, actual=ROWS, desired=ROWS, atol=2.0) == (1e-7, 2.0)
    assert read(NUMPY_ASKS, ROWS, ROWS) == (1e-5, 1e-8)
    assert read(TORCH_ASKS, input=ROWS, other=ROWS, rtol=0.5) == (0.5, 1e-8)
    assert read(TORCH, single, single) == (1.3e-6, 1e-5)
    assert read(TORCH, single, ROWS) == (1.3e-6, 1e-5)
    assert read(TORCH, ROWS, ROWS, rtol=0.0, atol=3.0) == (0.0, 3.0)


def test_torchs_default_tolerances_are_those_of_torch():
    torch = pytest.importorskip("torch")
    from torch.testing._comparison import default_tolerances

    for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int32"):
        values = torch.ones(8, dtype=getattr(torch, name))
        (pair,) = pairs(TORCH, (values, values), {})
        assert (pair.rtol, pair.atol) == default_tolerances(values.dtype)


def test_containers_are_taken_apart():
    found = {"a": [ROWS, (ROWS[0], ROWS[1])], "b": ROWS}

    assert len(list(pairs(TORCH, (found, found), {}))) == 4
    assert len(list(pairs(NUMPY, ([1.0, 2.0], [1.0, 2.0]), {}))) == 1


def test_tensors_that_hold_no_plain_numbers_are_left_alone():
    torch = pytest.importorskip("torch")
    sparse = torch.eye(9).to_sparse()

    assert list(pairs(TORCH, (sparse, sparse), {})) == [None]
    (pair,) = pairs(TORCH, (torch.ones(9, dtype=torch.bfloat16, requires_grad=False),) * 2, {})
    assert pair.eps == 2.0**-7
