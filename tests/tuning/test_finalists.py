"""Who wins a race. Handed case 12: 100 and 100.5 us under 3 % of noise, 20 seeds; a config 10 % faster always wins."""

from __future__ import annotations

import random

import pytest

from kvreg_tuning.effort import EFFORTS
from kvreg_tuning.finalists import LEAST_GAIN, compare, decide

ROUNDS = EFFORTS["quick"].rounds
NOISE = 0.03
SEEDS = range(20)


def samples(us: float, seed: object, *, rounds: int = ROUNDS, noise: float = NOISE) -> list[float]:
    drawn = random.Random(str((us, seed)))
    return [us * (1 + drawn.gauss(0, noise)) for _ in range(rounds)]


@pytest.mark.parametrize(("default_us", "other_us"), [(100.0, 100.5), (100.5, 100.0)])
def test_the_default_wins_a_tie_whatever_the_noise(default_us: float, other_us: float) -> None:
    found = [decide([samples(default_us, seed), samples(other_us, seed)]) for seed in SEEDS]

    assert sum(each.winner == 0 for each in found) >= 19
    assert sum(each.tie for each in found) >= 19


def test_equal_configs_that_beat_the_default_do_not_trade_places() -> None:
    found = [decide([samples(130.0, seed), samples(100.0, seed), samples(100.5, ("b", seed))]) for seed in SEEDS]

    assert sum(each.winner == 1 for each in found) >= 19
    assert all(each.tie for each in found)


def test_the_stored_config_wins_among_equals() -> None:
    race = [samples(130.0, 1), samples(100.0, 1), samples(100.5, 2)]

    assert decide(race).winner == 1
    assert decide(race, stored=2).winner == 2


def test_a_stored_config_that_is_slower_loses() -> None:
    assert decide([samples(130.0, 1), samples(100.0, 1), samples(112.0, 2)], stored=2).winner == 1


@pytest.mark.parametrize("effort", EFFORTS)
def test_ten_per_cent_always_win(effort: str) -> None:
    rounds = EFFORTS[effort].rounds
    for seed in range(200):
        decision = decide([samples(100.0, seed, rounds=rounds), samples(90.0, seed, rounds=rounds)])

        assert decision.winner == 1
        assert not decision.tie
        assert decision.of(1).over_default.gain == pytest.approx(0.1, abs=0.05)


def test_a_gain_below_three_per_cent_counts_on_no_quiet_card() -> None:
    quiet = decide([samples(100.0, 1, noise=0.0), samples(100 * (1 - LEAST_GAIN) + 0.01, 1, noise=0.0)])

    assert quiet.winner == 0
    assert quiet.fastest == 1
    assert quiet.tie


def test_a_gain_within_the_noise_counts_for_nothing() -> None:
    wild = [100.0, 40.0, 170.0, 60.0, 140.0]

    assert not compare([value * 0.96 for value in reversed(wild)], wild).better
    assert decide([wild, [value * 0.96 for value in reversed(wild)]]).winner == 0


def test_what_slows_a_whole_round_cancels() -> None:
    throttled = [1.0] * 10 + [1.5] * 10

    decision = decide([[100 * each for each in throttled], [95 * each for each in throttled]])

    assert decision.winner == 1
    assert decision.of(1).over_default.gain == pytest.approx(0.05)
    assert decision.of(1).over_default.noise < 1e-9


def test_one_that_is_out_cannot_win_and_a_default_that_is_out_is_replaced() -> None:
    assert decide([samples(100.0, 1), []]).winner == 0
    assert decide([[], samples(100.0, 1), samples(80.0, 2)]).winner == 2


def test_a_race_that_nobody_ran_has_no_winner() -> None:
    with pytest.raises(ValueError, match="contestant"):
        decide([[], []])
