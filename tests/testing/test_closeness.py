"""assert_attention_close: what it lets pass, what it stops, and what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.gate import reference_of
from kvreg.testing import assert_attention_close, build


@pytest.fixture(scope="module")
def right():
    """The rows of two sequences by the oracle, and their spread."""
    batch = build("decode", head_size=64, contexts=(64, 128), inputs=("normal",))
    return reference_of(batch, batch.filled(Mode.INT4_PER_TOKEN_HEAD))


WRONG = {
    "zeros": lambda x: torch.zeros_like(x),
    "mean": lambda x: x.mean().expand_as(x),
    "mean row": lambda x: x.mean((0, 1)).expand_as(x),
    "shuffled rows": lambda x: x.roll(1, 0),
    "shuffled heads": lambda x: x.roll(1, 1),
    "tenth less": lambda x: 0.9 * x,
    "negative": lambda x: -x,
    "nan": lambda x: x.where(torch.rand_like(x) > 0.01, torch.tensor(float("nan")).double()),
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6], ids=str)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_fail_whatever_their_size(right, wrong, scale):
    with pytest.raises(AssertionError, match="rows are wrong"):
        assert_attention_close(scale * WRONG[wrong](right.out), scale * right.out)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6], ids=str)
def test_a_bf16_rounding_passes_whatever_its_size(right, scale):
    assert_attention_close((scale * right.out).bfloat16(), scale * right.out)


def test_numpy_and_torch_are_judged_alike(right):
    found, due = right.out.float().numpy(), right.out.numpy()

    assert_attention_close(found, due)
    assert_attention_close(found, right.out)
    with pytest.raises(AssertionError) as of_numpy:
        assert_attention_close(np.zeros_like(found), due)
    with pytest.raises(AssertionError) as of_torch:
        assert_attention_close(torch.zeros_like(right.out), right.out)
    assert str(of_numpy.value) == str(of_torch.value)


def test_the_message_names_the_worst_row_with_e_cosine_and_limits(right):
    found = right.out.clone()
    found[1, 2] *= 1.02
    found[0, 3] *= 1.1

    with pytest.raises(AssertionError) as failed:
        assert_attention_close(found, right.out)

    size = float(right.out[0, 3].norm())
    assert str(failed.value) == (
        "attention: 2 of 16 rows are wrong; worst row [0, 3]: e 0.1, required at most 0.005; "
        f"cosine 1.000000, required at least 0.999; length {1.1 * size:.3g}, expected {size:.3g}"
    )


def test_the_spread_keeps_a_row_that_cancels_from_being_judged_by_what_is_left(right):
    due = right.out.clone()
    due[0, 0] *= 1e-3  # what a right kernel's rounding is now large against
    found = due.clone()
    found[0, 0] += 1e-4 * right.spread[0, 0] / 8

    assert_attention_close(found, due, spread=right.spread)
    with pytest.raises(AssertionError, match=r"worst row \[0, 0\]"):
        assert_attention_close(found, due)


def test_limits_are_the_callers_to_choose(right):
    one_channel = torch.nn.functional.one_hot(torch.tensor(0), 64)
    turned = right.out + 0.1 * right.out.norm(dim=-1, keepdim=True) * one_channel

    assert_attention_close(1.009 * right.out, right.out, limit=1e-2)
    assert_attention_close(turned, right.out, limit=1.0, cosine=0.9)
    with pytest.raises(AssertionError, match=r"required at least 0\.9999"):
        assert_attention_close(turned, right.out, limit=1.0, cosine=0.9999)


def test_rows_of_zeros_demand_zeros(right):
    due = right.out.clone()
    due[1] = 0
    found = due.clone()

    assert_attention_close(found, due)
    found[1, 0, 0] = 1e-30
    with pytest.raises(AssertionError, match=r"worst row \[1, 0\]: e inf"):
        assert_attention_close(found, due)


@pytest.mark.parametrize(
    ("actual", "expected", "told"),
    [
        (torch.ones(2, 8), torch.ones(2, 4), r"required the shape of expected, \(2, 4\)"),
        (torch.ones(0, 8), torch.ones(0, 8), "with one row at least"),
        (torch.ones(()), torch.ones(()), "with one row at least"),
        (torch.ones(1, 2), torch.tensor([[1.0, float("nan")]]), "correct the reference"),
    ],
    ids=["shape", "no rows", "no axis", "reference of nan"],
)
def test_what_cannot_be_compared_fails(actual, expected, told):
    with pytest.raises(AssertionError, match=told):
        assert_attention_close(actual, expected)


def test_a_single_row_is_one(right):
    assert_attention_close(right.out[0, 0], right.out[0, 0])
    with pytest.raises(AssertionError, match=r"1 of 1 rows are wrong; worst row \[\]"):
        assert_attention_close(-right.out[0, 0], right.out[0, 0])


def test_below_its_normal_numbers_a_type_is_judged_by_its_steps():
    """Half of fp16's least step, 3e-8, is a third of these values; a wrong row of normal size stays wrong."""
    due = torch.full((1, 64), 1e-7, dtype=torch.float64)
    assert_attention_close(due.to(torch.float16), due)
    with pytest.raises(AssertionError, match="e "):
        assert_attention_close(torch.full((1, 64), 2e-4, dtype=torch.float16), due)
