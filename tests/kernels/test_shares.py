"""Equal shares of a batch of unlike lengths: every key is read once, and what each share found is joined."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kvreg.core.layouts import default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import build
from kvreg_cuda.launching import shareable
from kvreg_cuda.shares import MOST_ROWS
from kvreg_cuda.variants import own

INT4 = Mode.INT4_PER_TOKEN_HEAD
(VARIANT,) = (each for each in own() if each.mode is INT4 and each.op is Op.DECODE)
UNLIKE = (1, 200, 0, 64)


def batch_of(contexts=UNLIKE, **shape):
    usual = {"dtype": "fp32", "layout": default(INT4), "head_size": 32, "kv_heads": 1, "inputs": ("normal",)}
    return build("decode", contexts=contexts, **{**usual, **shape})


@pytest.fixture
def call_of(attention):
    def make(batch, cache, **cut):
        return attention(INT4, Op.DECODE, batch, cache, own=VARIANT, splits=3, **cut)

    return make


@pytest.mark.parametrize(("shares", "group"), [(1, 4), (3, 1), (5, 7), (30, 2)])
def test_shares_of_unlike_contexts_give_what_whole_contexts_give(shares, group, call_of):
    batch = batch_of(group=group)
    cache = batch.filled(INT4)

    report = run_attention(call_of(batch, cache, shares=shares), batch, cache)

    assert report.ok, report.failures


@pytest.mark.parametrize("features", [("window",), ("sinks",), ("prefix_ranges",)], ids="+".join)
def test_what_shares_do_not_serve_is_cut_context_by_context(features, call_of):
    batch = batch_of((1, 100), group=4, features=features)
    cache = batch.filled(INT4)

    assert run_attention(call_of(batch, cache, shares=5), batch, cache).ok


@pytest.mark.parametrize("cu_q", [(0, 2, 2, 3), (0, 1, 1, 2), (0, 0, 0, 1)], ids=str)
def test_rows_find_their_sequence_where_some_have_none_or_two(cu_q, call_of):
    """As the launch that cuts contexts one by one does; rows behind the last sequence become zeros."""
    whole = batch_of((200, 40, 90), group=2)
    cache = whole.filled(INT4)
    batch = replace(whole, q=whole.q[:3], cu_q=torch.tensor(cu_q, dtype=torch.int32), seq_lens=whole.seq_lens[:3])
    shared, cut = torch.full_like(batch.q, math.nan), torch.full_like(batch.q, math.nan)

    call_of(batch, cache, shares=7)(shared, None)
    call_of(batch, cache)(cut, None)

    assert (shared[cu_q[-1] :] == 0).all()
    torch.testing.assert_close(shared, cut, atol=5e-4, rtol=5e-4)


def test_a_row_that_sees_less_than_its_sequence_holds_joins_only_what_it_sees(call_of):
    """The last tile of 65 keys is the second row's alone, and so is the share that holds it."""
    whole = batch_of((65, 40, 90), group=2)
    cache = whole.filled(INT4)
    cu_q = torch.tensor((0, 2, 2, 2), dtype=torch.int32)
    batch = replace(whole, q=whole.q[:3], cu_q=cu_q, seq_lens=whole.seq_lens[:3])
    shared, cut = torch.full_like(batch.q, math.nan), torch.full_like(batch.q, math.nan)

    call_of(batch, cache, shares=20, tile=32)(shared, None)
    call_of(batch, cache, tile=32)(cut, None)

    torch.testing.assert_close(shared, cut, atol=5e-4, rtol=5e-4)


def test_the_same_call_gives_the_same_bits(call_of):
    batch = batch_of()
    cache = batch.filled(INT4)
    first, second = torch.empty_like(batch.q), torch.empty_like(batch.q)

    call_of(batch, cache, shares=5)(first, None)
    call_of(batch, cache, shares=5)(second, None)

    assert torch.equal(first, second)


def test_more_rows_than_a_program_adds_up_are_not_shared():
    class Call:
        features = batch_of((1,)).features
        q = torch.empty((MOST_ROWS + 1, 1, 32))
        cu_q = torch.empty(MOST_ROWS + 2)

    assert not shareable(Call)
    Call.q, Call.cu_q = Call.q[1:], Call.cu_q[1:]
    assert shareable(Call)
