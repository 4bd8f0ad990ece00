"""Which config is tried next: all of them, at random, or as Optuna proposes."""

from __future__ import annotations

import itertools
import math

import pytest

from kvreg.core.errors import UsageError
from kvreg_tuning import effort, search

KNOBS = {"tile": (16, 32, 64, 128), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4), "parts": (1, 2, 4, 8, 16)}
CONFIGS = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]


def cost(config: dict[str, int]) -> float:
    """A bowl whose bottom is tile 64, 2 warps, 3 stages, 8 parts."""
    off = (math.log2(config["tile"] / 64), math.log2(config["num_warps"] / 2), math.log2(config["parts"] / 8))
    return sum(abs(each) for each in off) * 0.3 + abs(config["num_stages"] - 3) * 0.1


def asked(made: search.Search, trials: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    while len(found) < trials and (batch := made.ask(min(8, trials - len(found)))):
        for config in batch:
            made.tell(config, cost(dict(config)))
        found += [dict(config) for config in batch]
    return found


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "optuna"])
def test_every_config_is_asked_once_and_in_the_same_order_again(strategy: effort.Strategy) -> None:
    if strategy == "optuna":
        pytest.importorskip("optuna")
    few = {name: values[:3] for name, values in KNOBS.items()}
    configs = [dict(zip(few, values, strict=True)) for values in itertools.product(*few.values())]

    first = asked(search.make(strategy, configs, few, seed=3), 1000)
    again = asked(search.make(strategy, configs, few, seed=3), 1000)

    assert first == again
    assert sorted(map(str, first)) == sorted(map(str, configs))


def test_another_seed_asks_in_another_order() -> None:
    assert asked(search.Random(CONFIGS, 1), 10) != asked(search.Random(CONFIGS, 2), 10)


def test_optuna_finds_the_bottom_of_a_bowl_with_a_third_of_the_space() -> None:
    pytest.importorskip("optuna")
    best = [min(map(cost, asked(search.make("optuna", CONFIGS, KNOBS, seed), 96))) for seed in range(3)]

    assert max(best) <= 0.1


def test_what_is_pruned_is_never_proposed() -> None:
    pytest.importorskip("optuna")
    left = [config for config in CONFIGS if config["num_warps"] < 8]

    assert all(config["num_warps"] < 8 for config in asked(search.make("optuna", left, KNOBS, 0), 40))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("45", 45)])
def test_a_budget_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert effort.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "0s", "-5m", "5d", "1e3", "nan"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"90s, 10m, 1.5h or 90 \(seconds\)"):
        effort.seconds(text)
