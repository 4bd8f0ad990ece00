"""Comparisons of every kind that the audit judges, each named by what becomes of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import conftest

ROWS = np.random.default_rng(3).standard_normal((16, 8))


def test_sound():
    assert_allclose(ROWS + 1e-9, ROWS, atol=1e-6)


def test_unsound_zeros():
    assert_allclose(ROWS, ROWS, atol=5.0)


def test_unsound_mean():
    assert_allclose(100 + ROWS, 100 + ROWS, rtol=0.05)


def test_unsound_shuffled():
    # Every row has one large value at the same place, which neither zeros nor the mean have.
    rows = np.where(np.arange(8) == 3, 20.0, 0.0) + 2 * ROWS
    assert_allclose(rows, rows, atol=14.0)


def test_unsound_uncorrelated():
    assert_allclose(ROWS[::-1], ROWS, atol=9.0)


def test_unsound_list_of_numbers():
    assert_allclose(list(ROWS.ravel()), list(ROWS.ravel()), atol=5.0)


def test_unsound_list_of_short_rows():
    assert_allclose(list(ROWS[:, :4]), list(ROWS[:, :4]), atol=5.0)


def test_unsound_imported_by_conftest():
    conftest.bound_early(ROWS, ROWS, atol=5.0)


def test_unsound_imported_in_the_test():
    import numpy.testing as late

    late.assert_allclose(ROWS, ROWS, atol=5.0)


def test_unsound_question():
    assert np.allclose(ROWS, ROWS, atol=5.0)


def test_sound_question_that_is_denied():
    assert not np.allclose(ROWS + 9, ROWS, atol=5.0)


def test_sound_question_of_other_code():
    assert conftest.asks(ROWS)


def test_unsound_though_a_failure_is_awaited():
    with pytest.raises(AssertionError):
        assert_allclose(ROWS, ROWS, atol=5.0)


def test_unsound_though_it_is_caught():
    try:
        assert_allclose(ROWS, ROWS, atol=5.0)
    except BaseException:
        return


def test_sound_where_a_failure_is_awaited_and_comes():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_allclose(ROWS + 9, ROWS, atol=5.0)


def test_failing_by_itself():
    assert_allclose(ROWS + 9, ROWS, atol=5.0)


def test_sound_exempt():
    assert_allclose(np.arange(9), np.arange(9), atol=99)
    assert_allclose(3.0, 3.1, atol=1.0)
    assert_allclose(np.zeros(99), np.zeros(99), atol=1.0)


@pytest.mark.kvreg_unaudited(reason="only the order of magnitude is known")
def test_sound_marked():
    assert_allclose(ROWS, ROWS, atol=5.0)


@pytest.mark.kvreg_unaudited
def test_unsound_marked_without_a_reason():
    assert_allclose(ROWS, ROWS, atol=1e-6)


@pytest.fixture
def compared():
    assert_allclose(ROWS, ROWS, atol=5.0)


def test_unsound_fixture(compared):
    pass
