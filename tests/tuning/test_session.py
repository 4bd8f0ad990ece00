"""A session from its space to its winners, on recorded spaces whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvreg.core.buckets import Bucket
from kvreg.core.errors import DeviceUnavailable
from kvreg_tuning import recording
from kvreg_tuning.effort import EFFORTS, Effort
from kvreg_tuning.journal import Journal
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.replay import Replay
from kvreg_tuning.session import Session, Verdict
from kvreg_tuning.subjects import Subject
from kvreg_tuning.worker import Outcome

QUICK = EFFORTS["quick"]
Config = Mapping[str, int]


class Watching:
    """A view that remembers, and that may be told to interrupt after some trials."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.trials: list[tuple[Trial, bool]] = []
        self.notes: list[str] = []
        self.stop_after = stop_after

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None: ...

    def trial(self, trial: Trial, known: bool) -> None:
        self.trials.append((trial, known))
        if self.stop_after is not None and len(self.trials) >= self.stop_after:
            raise KeyboardInterrupt

    def race(self, bucket: Bucket, contestants: int) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def session(path: Path, journal: Journal, view: Watching | None = None, *, seed: int = 0, **asked: Any) -> Session:
    recorded = recording.read(path)
    (space,) = recorded.spaces
    effort: Effort = asked.pop("effort", QUICK)
    runner = asked.pop("runner", None) or Replay(recorded, seed)
    return Session(
        subject=space.subject,
        buckets=space.buckets,
        candidates=space.candidates,
        runner=runner,
        journal=journal,
        identity={"kernel_hash": space.kernel_hash},
        effort=effort,
        strategy=asked.pop("strategy", "random"),
        view=view or Watching(),
        seed=seed,
        **asked,
    )


def run(path: Path, folder: Path, view: Watching | None = None, **asked: Any) -> list[Verdict]:
    with Journal(folder / "journal.sqlite") as journal:
        return session(path, journal, view, **asked).run()


def bowl(config: Config, bucket: str = "b32-c8192") -> dict[str, Any]:
    """100 us at the default; 60 us at tile 64, 2 warps, 3 stages, 8 parts."""
    off = abs(math.log2(config["tile"] / 64)) + abs(math.log2(config["num_warps"] / 2))
    off += abs(math.log2(config["programs_per_unit"] / 8)) + abs(config["num_stages"] - 3) / 2
    us = 60 * (100 / 60) ** (off / 2)
    return {"us": us, "spread": 0.01}


def flat(default_us: float, other_us: float) -> Callable[[Config, str], dict[str, Any]]:
    return lambda config, bucket: {"us": default_us if config["kind"] == 0 else other_us, "spread": 0.03 * 1.349}


PAIR: dict[str, Any] = {"knobs": {"kind": (0, 1)}, "default": {"kind": 0}}


def test_twenty_tunes_of_equal_configs_have_one_winner(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(flat(100.0, 100.5), **PAIR)

    found = [run(path, tmp_path / str(seed), seed=seed)[0] for seed in range(20)]

    assert sum(each.winner is not None and each.winner.config == {"kind": 0} for each in found) >= 19
    assert sum(each.decision is not None and each.decision.tie for each in found) >= 19
    spreads = [each.decision.of(0).spread for each in found if each.decision is not None]
    assert all(0.01 < spread < 0.1 for spread in spreads)


def test_twenty_tunes_find_ten_per_cent(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(flat(100.0, 90.0), **PAIR)

    for seed in range(20):
        (verdict,) = run(path, tmp_path / str(seed), seed=seed)

        assert verdict.winner is not None
        assert verdict.winner.config == {"kind": 1}
        assert verdict.improvement == pytest.approx(0.1, abs=0.04)


def test_an_interrupted_run_ends_like_one_that_was_not_and_repeats_no_trial(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    path = recorded(bowl, buckets=("b1-c8192", "b32-c8192"))
    whole_view = Watching()
    whole = run(path, tmp_path / "whole", whole_view)

    first, second = Watching(stop_after=11), Watching()
    with pytest.raises(KeyboardInterrupt):
        run(path, tmp_path / "cut", first)
    resumed = run(path, tmp_path / "cut", second)

    assert [each.winner for each in resumed] == [each.winner for each in whole]
    assert [each.decision for each in resumed] == [each.decision for each in whole]
    assert [trial for trial, _ in second.trials] == [trial for trial, _ in whole_view.trials]
    # What was written before the interrupt is known now, and nothing else is.
    assert [known for _, known in second.trials] == [True] * 11 + [False] * (len(second.trials) - 11)


def test_a_finished_run_runs_nothing_again(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(bowl)
    before = run(path, tmp_path)
    view = Watching()

    assert run(path, tmp_path, view, runner=Deaf(recording.read(path)))[0].winner == before[0].winner
    assert all(known for _, known in view.trials)


class Deaf(Replay):
    """A runner on which a trial must not run."""

    def gate(self, *_: Any, **__: Any) -> Outcome:
        raise AssertionError("a finished trial ran again")

    race = gate


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"result": "wrong", "reason": "rel_error: required at most 0.005, found 1.0", "us": None}, "rel_error"),
        ({"result": "compile", "reason": "PTXASError: ptxas fatal", "us": None}, "ptxas fatal"),
        ({"result": "resource", "reason": "compile: out of resource: shared memory", "us": None}, "shared memory"),
        ({"result": "timeout", "reason": "bench: task: still running after 30 s", "us": None}, "bench: task"),
        ({"result": "crash", "reason": "gate: task: killed by SIGSEGV", "us": None}, "SIGSEGV"),
    ],
)
def test_what_fails_is_a_row_of_its_own_type_and_never_wins(
    recorded: Callable[..., Path], tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    def trial(config: Config, bucket: str) -> dict[str, Any]:
        return fields if config["kind"] == 2 else {"us": (100.0, 80.0)[config["kind"]], "spread": 0.01}

    path = recorded(trial, knobs={"kind": (0, 1, 2)}, default={"kind": 0})
    view = Watching()

    (verdict,) = run(path, tmp_path, view)

    (failed,) = [each for each, _ in view.trials if each.config == {"kind": 2}]
    assert failed.result == fields["result"]
    assert says in failed.reason
    assert "compile: compile" not in failed.reason
    assert verdict.winner is not None
    assert verdict.winner.config == {"kind": 1}
    assert verdict.counts == {"ok": 2, fields["result"]: 1}


def test_a_config_that_is_far_slower_is_out_after_few_samples(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(lambda config, _: {"us": (100.0, 350.0)[config["kind"]], "spread": 0.01}, **PAIR)

    (verdict,) = run(path, tmp_path)

    assert verdict.counts == {"ok": 1, "slow": 1}
    assert len(verdict.contestants) == 1


def test_configs_that_are_one_launch_are_one_trial(recorded: Callable[..., Path], tmp_path: Path) -> None:
    def trial(config: Config, bucket: str) -> dict[str, Any]:
        return {"us": 100.0, "spread": 0.01, "launch": "the same"}

    path = recorded(trial, **PAIR)
    view = Watching()

    (verdict,) = run(path, tmp_path, view)

    assert [each.seconds > 0 for each, _ in view.trials] == [True, False]
    assert len(verdict.contestants) == 1


def test_a_spent_budget_ends_the_search_with_a_winner_and_the_next_call_goes_on(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    path = recorded(bowl)
    replay = Replay(recording.read(path))

    (cut,) = run(path, tmp_path, runner=replay, effort=EFFORTS["full"], strategy="exhaustive", budget_s=60.0)
    view = Watching()
    (whole,) = run(path, tmp_path, view, effort=EFFORTS["full"], strategy="exhaustive")

    assert cut.cut_off
    assert cut.winner is not None
    assert replay.clock() < 60.0
    assert not whole.cut_off
    assert whole.winner is not None
    assert whole.winner.us == pytest.approx(60.0, rel=0.05)
    assert sum(known for _, known in view.trials) == sum(cut.counts.values())


def test_a_trial_that_the_budget_ended_is_no_hung_one(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(flat(100.0, 80.0), **PAIR)

    (cut,) = run(path, tmp_path, runner=Lingering(recording.read(path)), budget_s=50.0)
    (whole,) = run(path, tmp_path)

    assert cut.counts == {"ok": 1}
    assert whole.counts == {"ok": 2}
    assert whole.winner is not None
    assert whole.winner.config == {"kind": 1}


class Lingering(Replay):
    """A device on which kind 1 is judged until the time is up."""

    def gate(self, subject: Subject, bucket: Bucket, config: Config, seeds: Sequence[int], left_s: float) -> Outcome:
        if config["kind"] == 0:
            return super().gate(subject, bucket, config, seeds, left_s)
        self._passed += left_s
        return Outcome("timeout", error="killed at the end of the budget", elapsed_s=left_s)


def test_the_default_runs_whatever_the_budget(recorded: Callable[..., Path], tmp_path: Path) -> None:
    (verdict,) = run(recorded(bowl), tmp_path, budget_s=1e-3)

    assert verdict.default.us is not None
    assert verdict.winner == verdict.default
    assert verdict.cut_off


def test_a_stored_config_is_tried_and_keeps_its_place_among_equals(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    path = recorded(
        lambda config, _: {"us": (130.0, 100.0, 100.2)[config["kind"]], "spread": 0.01},
        knobs={"kind": (0, 1, 2)},
        default={"kind": 0},
    )

    (verdict,) = run(path, tmp_path, stored={"b32-c8192": {"kind": 2}})

    assert verdict.winner is not None
    assert verdict.winner.config == {"kind": 2}
    assert verdict.decision is not None
    assert verdict.decision.tie


def test_each_bucket_has_its_own_winner(recorded: Callable[..., Path], tmp_path: Path) -> None:
    def trial(config: Config, bucket: str) -> dict[str, Any]:
        good = 1 if bucket == "b1-c8192" else 2
        return {"us": 70.0 if config["kind"] == good else 100.0, "spread": 0.01}

    path = recorded(trial, knobs={"kind": (0, 1, 2)}, default={"kind": 0}, buckets=("b1-c8192", "b32-c8192"))

    winners = [each.winner for each in run(path, tmp_path)]

    assert [dict(each.config) for each in winners if each is not None] == [{"kind": 1}, {"kind": 2}]


def test_a_lost_device_ends_the_run_and_leaves_the_journal(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(bowl)
    replay = Losing(recording.read(path))

    with pytest.raises(DeviceUnavailable, match="journal"):
        run(path, tmp_path, runner=replay)

    view = Watching()
    run(path, tmp_path, view)
    assert sum(known for _, known in view.trials) == 4


class Losing(Replay):
    """A card that falls off the bus during the fifth timing."""

    benched = 0

    def bench(self, *asked: Any, **more: Any) -> Outcome:
        type(self).benched += 1
        if type(self).benched == 5:
            return Outcome("error", error="RuntimeError: CUDA error: GPU has fallen off the bus")
        return super().bench(*asked, **more)


def test_a_finalist_that_breaks_the_race_is_out_of_it(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(
        lambda config, _: {"us": (100.0, 60.0, 80.0)[config["kind"]], "spread": 0.01},
        knobs={"kind": (0, 1, 2)},
        default={"kind": 0},
    )
    view = Watching()

    (verdict,) = run(path, tmp_path, view, runner=Breaking(recording.read(path)))

    assert verdict.winner is not None
    assert verdict.winner.config == {"kind": 2}
    assert any("kind=1" in note and "hung in the race" in note for note in view.notes)


class Breaking(Replay):
    """A card on which kind 1, the fastest, hangs once it is raced."""

    def race(self, subject: Subject, bucket: Bucket, configs: Sequence[Config], *asked: Any) -> Outcome:
        if {"kind": 1} in list(configs):
            return Outcome("timeout", error="hung in the race")
        return super().race(subject, bucket, configs, *asked)


def test_a_wrong_default_is_said_and_the_fastest_right_one_takes_its_place(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    def trial(config: Config, bucket: str) -> dict[str, Any]:
        if config["kind"] == 0:
            return {"result": "wrong", "reason": "poison: 12 never written", "us": None}
        return {"us": 100.0, "spread": 0.01}

    (verdict,) = run(recorded(trial, **PAIR), tmp_path)

    assert verdict.default.result == "wrong"
    assert verdict.winner is not None
    assert verdict.winner.config == {"kind": 1}


def test_more_trials_never_cost_more_than_the_effort_says(recorded: Callable[..., Path], tmp_path: Path) -> None:
    view = Watching()

    run(recorded(bowl), tmp_path, view, effort=replace(QUICK, trials=5))

    assert len(view.trials) == 1 + 5
