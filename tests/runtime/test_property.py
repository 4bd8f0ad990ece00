"""Drawn calls: modes, shapes, lengths, pages, features and layouts; kernel, plain torch and oracle agree."""

from __future__ import annotations

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
    return st.sampled_from(stored).flatmap(lambda pair: _cases(limits, features, *pair))


def _cases(limits, features, mode, layout):
    return st.builds(
        Case,
        mode=st.just(mode),
        layout=st.just(layout),
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


@drawn("interpreter", 20)
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
