"""Drawn calls: modes, shapes, lengths, pages, features and layouts; kernel, plain torch and oracle agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvreg.core import layouts
from kvreg.core.modes import Mode
from kvreg.testing import INPUTS, KINDS
from kvreg.testing.features import MASKINGS
from kvreg.validation.fuzz_cases import LIMITS, OTHER_FEATURES, Case, Limits
from kvreg.validation.fuzz_judge import judge
from kvreg.validation.unproven import place_of


def cases(limits: Limits) -> st.SearchStrategy[Case]:
    """Every call that fits the limits; it shrinks to one short causal sequence of unquantized rows."""
    features = st.tuples(
        st.sampled_from(MASKINGS), st.lists(st.sampled_from(OTHER_FEATURES), unique=True, max_size=6)
    ).map(lambda pair: (pair[0], *pair[1]))
    stored = [(str(mode), layout) for mode in Mode for layout in layouts.known(mode)]
    return st.builds(
        lambda pair, **values: Case(mode=pair[0], layout=pair[1], **values),
        st.sampled_from(stored),
        head_size=st.integers(4, limits.head_size // 8).map(lambda eighth: 8 * eighth),
        group=st.integers(1, limits.group),
        kv_heads=st.integers(1, limits.kv_heads),
        page=st.integers(1, limits.page // 16).map(lambda part: 16 * part),
        dtype=st.sampled_from(limits.dtypes),
        features=features,
        kind=st.sampled_from(KINDS),
        contexts=st.lists(st.integers(0, limits.context), min_size=1, max_size=limits.sequences).map(tuple),
        input=st.sampled_from(INPUTS),
        window=st.integers(1, 2 * limits.context),
        batch_invariant=st.booleans(),
        strided=st.booleans(),
        narrow_slots=st.booleans(),
        stray=st.integers(0, 3),
        seed=st.integers(0, 1 << 20),
        total_known=st.booleans(),
        preference=st.integers(0, 3),
    )


def drawn(place: str, examples: int):
    """Decorate a test with `examples` cases for a place; the same ones in every run."""
    chosen = settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    return lambda test: chosen(given(case=cases(LIMITS[place]))(test))


@drawn("cpu", 40)
def test_plain_torch_gives_what_the_oracle_gives(case):
    assert judge(case, place_of("cpu")).failures == ()


@drawn("interpreter", 14)
def test_triton_gives_what_plain_torch_and_the_oracle_give(case):
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")

    assert judge(case, place_of("interpreter")).failures == ()


@pytest.mark.long
@drawn("cpu", 3000)
def test_plain_torch_gives_what_the_oracle_gives_in_many_cases(case):
    assert judge(case, place_of("cpu")).failures == ()


@pytest.mark.long
@drawn("interpreter", 500)
def test_triton_gives_what_plain_torch_and_the_oracle_give_in_many_cases(case):
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")

    assert judge(case, place_of("interpreter")).failures == ()


RANGE_BEHIND_ITS_SEQUENCE = Case(
    mode="none",
    layout="inline.1",
    head_size=64,
    group=6,
    kv_heads=2,
    page=32,
    dtype="fp16",
    features=("non_causal", "prefix_ranges"),
    kind="decode",
    contexts=(14, 51),
    input="normal",
    window=1,
    batch_invariant=False,
    strided=False,
    narrow_slots=False,
    stray=1,
    seed=881097,
    total_known=False,
    preference=0,
)


def test_a_range_that_ends_behind_its_sequence_holds_no_row_of_no_sequence():
    """Such rows count on from the last sequence's end; an H200 gave them values until ranges were cut off."""
    assert judge(RANGE_BEHIND_ITS_SEQUENCE, place_of("interpreter")).failures == ()


def test_bf16_that_the_interpreter_cuts_off_is_no_error_of_a_kernel():
    """Such a cut alone had an e of 5.03e-3 here. A Triton that rounds shows 5.9e-3: judge it as a card is then."""
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    case = replace(
        RANGE_BEHIND_ITS_SEQUENCE,
        mode="fp8_per_tensor",
        layout="planar.1",
        head_size=40,
        page=16,
        dtype="bf16",
        features=("causal",),
        kind="prefill",
        contexts=(29,),
        stray=0,
        seed=1048576,
    )
    judged = judge(case, place_of("interpreter"))

    assert judged.failures == ()
    assert judged.worst < 1e-3


def test_outputs_below_the_normal_numbers_of_fp16_are_judged_by_what_it_can_hold():
    """A sink takes nearly all weight of a lone key: 31 is a seed whose outputs are a few steps of 6e-8 large."""
    case = replace(
        RANGE_BEHIND_ITS_SEQUENCE,
        mode="int8_per_token_head",
        head_size=192,
        group=7,
        kv_heads=6,
        page=240,
        features=("per_sequence_causal", "sinks", "multi_query_split"),
        kind="mixed",
        contexts=(1,),
        input="one_sided",
        strided=True,
        narrow_slots=True,
        stray=3,
        seed=31,
        preference=9,
    )
    assert judge(case, place_of("cpu")).failures == ()
