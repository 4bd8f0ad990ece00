"""The timing arithmetic, and the host method; the card's two methods run in ci/gpu."""

from __future__ import annotations

import itertools

import pytest
import torch

from kvreg_tuning import timing


def test_the_median_is_reported_and_an_outlier_moves_it_little() -> None:
    quiet = timing.summary([10.0, 10.1, 9.9, 10.0, 10.0], "host")
    noisy = timing.summary([10.0, 10.1, 9.9, 10.0, 500.0], "host")

    assert quiet.us == noisy.us == 10.0
    assert quiet.samples == 5


def test_the_spread_is_the_width_of_the_middle_half_over_the_median() -> None:
    assert timing.summary([1.0, 2.0, 3.0, 4.0, 5.0], "graph").spread == pytest.approx(2.0 / 3.0)
    assert timing.summary([7.0] * 9, "graph").spread == 0.0
    assert timing.summary([7.0], "graph").spread == 0.0


@pytest.mark.parametrize("samples", [[], [0.0], [-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_samples_that_are_no_times_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="positive samples"):
        timing.summary(samples, "host")


@pytest.mark.parametrize("bytes_per_call", [1, 1000, 1 << 20, 7 << 20, 50 << 20, 1 << 30])
def test_rotated_buffers_exceed_three_times_the_l2_or_reach_the_cap(bytes_per_call: int) -> None:
    l2 = 50 << 20
    count = timing.rotations(bytes_per_call, l2)

    assert count >= 2
    assert count * bytes_per_call > 3 * l2 or count == 256


def test_an_unknown_l2_counts_as_a_large_one() -> None:
    assert timing.rotations(1 << 20, None, most=10_000) > timing.rotations(1 << 20, 50 << 20, most=10_000)


def test_host_time_rotates_over_the_calls_and_divides_by_nothing() -> None:
    ticks = itertools.count()
    seen: list[int] = []
    calls = [lambda index=index: seen.append(index) for index in range(3)]

    taken = timing.host_time(calls, samples=6, clock=lambda: next(ticks) * 1e-3)

    assert seen == [0, 0, 1, 2, 0, 1, 2]  # one call to warm up, then in turn
    assert taken.us == pytest.approx(1000.0)
    assert taken.method == "host"


def test_the_cpu_is_measured_by_the_host_clock() -> None:
    assert timing.measure([lambda: sum(range(1000))], "cpu", replays=3).method == "host"


def test_read_bandwidth_of_the_cpu_is_a_plausible_number() -> None:
    assert 1e8 < timing.read_bandwidth("cpu", size=1 << 24) < 1e13


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_graph_and_delay_agree_on_a_copy() -> None:
    source = torch.randn(1 << 26, device="cuda")
    target = torch.empty_like(source)

    graph = timing.graph_time([lambda: target.copy_(source)])
    delay = timing.delayed_time([lambda: target.copy_(source)])

    assert graph.us == pytest.approx(delay.us, rel=0.2)
