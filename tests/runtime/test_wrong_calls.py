"""Every wrong call is a typed error of one line, found before anything is launched: not a byte has changed."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.errors import FeatureNotSelected, WrongCache, WrongShape
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.validation.robust.wrong_call_table import HEAD, KV, PAGE, PAGES, WRONG, WRONG_VALUES, Q, ints, ranges
from kvreg.validation.robust.wrong_calls import RIGHT, Calls, wrong_call
from kvreg.validation.unproven import place_of

GEOMETRY = {"head_size": HEAD, "q_heads": Q, "kv_heads": KV, "page": PAGE}
TABLE = {**WRONG, **WRONG_VALUES}


@pytest.fixture
def calls() -> Calls:
    return Calls(place_of("cpu"))


@pytest.fixture
def plan_for(select):
    """Return a function that plans for a cache of another kind."""

    def make(n_seqs: int = 3, **changed):
        other = KVCache.allocate(select("cpu", **{**GEOMETRY, **changed}), PAGES)
        return plan(other, torch.arange(n_seqs + 1).int(), torch.ones(n_seqs).int(), max_context=40)

    return make


@pytest.mark.parametrize("row", TABLE)
def test_a_wrong_call_is_typed_says_how_to_mend_it_and_changes_nothing(row, calls):
    assert list(wrong_call(calls, TABLE[row], row)) == []


@pytest.mark.parametrize(("call", "name"), [("write", "k"), ("write", "v"), ("attend", "q"), ("attend", "out")])
def test_heads_further_apart_than_a_kernel_counts_are_refused(call, name, calls):
    heads = Q if call == "attend" else KV
    most = ((1 << 31) - 1) // (heads - 1)
    nothing = torch.empty(0, dtype=torch.bfloat16)  # no rows: the strides alone are looked at
    right, wrong = (nothing.as_strided((0, heads, HEAD), (1, stride, 1)) for stride in (most, most + 1))
    others = {"k": right, "v": right, "slots": ints()} if call == "write" else {"q": right, "out": right}

    getattr(calls, call)(**others)
    with pytest.raises(WrongShape, match=f"{name}: required heads at most 2147483647 elements apart"):
        getattr(calls, call)(**{**others, name: wrong})


@pytest.mark.parametrize("call", RIGHT)
def test_the_calls_that_the_table_varies_are_right_as_they_stand(call, calls):
    getattr(calls, call)()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "none"}, "mode int4_per_token_head none"),
        ({"layout": "inline.1"}, "layout planar.2 inline.1"),
        ({"head_size": 48}, "head_size 40 48"),
        ({"q_heads": 4}, "q_heads 6 4"),
        ({"kv_heads": 3}, "kv_heads 2 3"),
        ({"page": 32}, "page 16 32"),
        ({"dtype": "fp16"}, "dtype bf16 fp16"),
        ({"scores": 1}, "decode torch-int4-decode@1 scores=4194304 scores=1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_plan_of_another_kind_of_cache_is_refused(changed, words, calls, plan_for):
    other = plan_for(**changed)

    with pytest.raises(WrongCache) as caught:
        calls.attend(plan=other)

    assert all(word in str(caught.value) for word in ("plan:", *words.split()))
    assert calls.out.isnan().all()


def test_page_numbers_that_no_query_leads_to_may_be_anything(calls):
    table = torch.tensor([[0, 1, 2], [-1, 99, -1], [77, 77, 77]], dtype=torch.int32)

    calls.attend(page_table=table, cu_q=ints(0, 3, 3, 3), seq_lens=ints(33, 40, 0))

    assert calls.out[:3].any(-1).all()


def test_a_plan_of_another_batch_is_refused(calls, plan_for):
    with pytest.raises(WrongShape, match=r"plan: required one for 3 sequences, found one for 2"):
        calls.attend(plan=plan_for(n_seqs=2))


def test_a_plan_serves_every_cache_of_its_kind(calls):
    other = Calls(calls.place)
    made = plan(other.cache, ints(0, 1, 2, 3), ints(1, 1, 1), max_context=40)

    calls.attend(plan=made)

    assert (calls.out[2] == 0).all()


def test_causal_attention_needs_the_feature_too():
    calls = Calls(place_of("cpu"), features=("non_causal",))

    with pytest.raises(FeatureNotSelected, match="feature causal"):
        calls.attend()


def test_the_table_of_wrong_calls_is_long_enough():
    assert len(TABLE) >= 150


@pytest.mark.parametrize("features", [
    {"causal": [True, False, True], "window": 1, "softcap": 30, "sinks": torch.zeros(Q), "alibi": torch.zeros(Q)},
    {"causal": torch.ones(3).bool(), "prefix_ranges": ranges(3, 1, 2)},
    {"causal": False, "prefix_ranges": ranges(3, 0, 2), "window": 2**31 - 1},
])  # fmt: skip
def test_the_features_that_the_table_varies_are_right_as_they_stand(features, calls):
    calls.featured(**features)

    assert calls.out.isfinite().all()
