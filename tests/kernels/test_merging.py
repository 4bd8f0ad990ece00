"""Reductions of more splits than are taken at once, empty ones among them."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.layouts import default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import build
from kvreg_triton.attend_rows import reduce
from kvreg_triton.merging import AT_ONCE

INT4 = Mode.INT4_PER_TOKEN_HEAD
WIDTH = 32
NAN, INF = float("nan"), float("inf")


def merged(tops: torch.Tensor, sums: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce one query row and head: (splits,) base-2 maxima and sums, (splits, WIDTH) rows."""
    out, lse = torch.full((1, 1, WIDTH), NAN), torch.full((1, 1), NAN)
    parts = torch.stack((tops, sums), dim=-1).contiguous()
    reduce[(1, 1)](out, lse, rows.contiguous(), parts, len(tops), 1, WIDTH, WIDTH, WIDTH, WIDTH)
    return out[0, 0], lse[0, 0]


@pytest.mark.parametrize("splits", [2, 15, 16, 17, 32, 33, 50])
def test_splits_are_joined_as_one_softmax_whatever_their_number(splits):
    tops, sums, rows = 10 * torch.randn(splits), 1 + torch.rand(splits), torch.randn(splits, WIDTH)

    out, lse = merged(tops, sums, rows)

    weights = (tops.double() - tops.double().max()).exp2()
    total = (weights * sums).sum()
    torch.testing.assert_close(out.double(), (weights[:, None] * rows).sum(0) / total, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), (tops.double().max() + total.log2()) * 0.6931471805599453)


@pytest.mark.parametrize("seen", [0, 15, 16, 31, 36], ids="only split {}".format)
def test_of_empty_splits_nothing_is_read_wherever_the_full_one_stands(seen):
    tops, sums, rows = torch.full((37,), -INF), torch.zeros(37), torch.full((37, WIDTH), NAN)
    tops[seen], sums[seen], rows[seen] = -3.0, 2.0, torch.arange(float(WIDTH))

    out, lse = merged(tops, sums, rows)

    assert torch.equal(out, rows[seen] / 2)
    assert lse == pytest.approx((-3 + 1) * 0.6931471805599453)


@pytest.mark.parametrize("highest", [0, 16, 36], ids="split {}".format)
def test_maxima_are_compared_over_all_splits_before_any_weight_is_taken(highest):
    """Against the largest of fewer splits a weight of 2 to the 200 would be infinite."""
    tops, sums, rows = torch.zeros(37), torch.ones(37), torch.rand(37, WIDTH)
    tops[highest] = 200.0

    out, lse = merged(tops, sums, rows)

    assert torch.equal(out, rows[highest])
    assert lse == pytest.approx(200 * 0.6931471805599453)


def test_a_row_that_no_split_has_seen_is_zeros():
    out, lse = merged(torch.full((20,), -INF), torch.zeros(20), torch.full((20, WIDTH), NAN))

    assert (out == 0).all()
    assert lse == -INF


@pytest.mark.parametrize("broken", [3, 18])
def test_a_split_that_is_not_a_number_stays_visible(broken):
    tops, sums, rows = torch.zeros(20), torch.ones(20), torch.ones(20, WIDTH)
    sums[broken] = rows[broken] = NAN

    out, _ = merged(tops, sums, rows)

    assert out.isnan().all()


def test_contexts_of_more_splits_than_are_taken_at_once_are_right_beside_empty_ones(attention):
    batch = build(
        "decode", head_size=32, group=1, kv_heads=1, contexts=(0, 1, 290), inputs=("normal",), dtype="fp32",
        layout=default(INT4),
    )  # fmt: skip
    cache = batch.filled(INT4)

    report = run_attention(attention(INT4, Op.DECODE, batch, cache, splits=AT_ONCE.value + 3, tile=16), batch, cache)

    assert report.ok, report.failures
    assert max(row.max_rel_error for row in report.rows) < 2e-5
