"""A campaign over several subjects: what is compiled first, how a budget is shared, and when races are repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvreg.core import resolve
from kvreg.core.buckets import Bucket
from kvreg.core.tuned_files import read
from kvreg_tuning.campaign import Campaign
from kvreg_tuning.effort import EFFORTS
from kvreg_tuning.journal import Journal
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.recording import Recording
from kvreg_tuning.replay import Replay
from kvreg_tuning.runner import Compilation
from kvreg_tuning.spaces import Candidates, Space
from kvreg_tuning.subjects import Subject, text_of

DECODE = ("triton-int4-decode@1", "decode", "int4_per_token_head")
WIDE = Subject("h200", *DECODE, 128, 4, 8)
NARROW = Subject("h200", *DECODE, 64, 1, 8)
BUCKETS = {WIDE: ("b1-c8192", "b8-c8192", "b32-c8192"), NARROW: ("b32-c8192",)}
CONFIGS = tuple({"tile": tile, "programs_per_unit": many} for tile in (32, 64) for many in (2, 4, 8))
"""Two kernels, each with as many splits as it has programs; of batch 32 two programs a unit leave contexts whole."""
TRIAL_S = 1.0


def launch(config: dict[str, int], bucket: str) -> str:
    splits = config["programs_per_unit"] // 2 if bucket.startswith("b32-") else config["programs_per_unit"]
    return f"tile={config['tile']}" + (f" splits={splits}" if splits > 1 else "")


def trial(config: dict[str, int], bucket: str) -> Trial:
    us = 100.0 - 10.0 * (config["tile"] == 64) - config["programs_per_unit"]
    gate = {"e": 0.002, "cosine": 0.99999, "seeds": 2, "bits": "same"}
    return Trial(
        config,
        bucket,
        "ok",
        us=us,
        spread=0.001,
        samples=20,
        gate=gate,
        bench_s=TRIAL_S,
        launch=launch(config, bucket),
    )


@pytest.fixture
def recorded() -> Recording:
    spaces = tuple(
        Space(
            subject,
            tuple(map(Bucket.parse, buckets)),
            Candidates({"tile": (32, 64), "programs_per_unit": (2, 4, 8)}, CONFIGS, ()),
            "ab" * 32,
        )
        for subject, buckets in BUCKETS.items()
    )
    trials = {
        (subject, bucket, text_of(config)): trial(config, bucket)
        for subject, buckets in BUCKETS.items()
        for bucket in buckets
        for config in CONFIGS
    }
    return Recording("h200", {"triton": "3.6.0"}, spaces, trials)


class Compiling(Replay):
    """A replay that compiles tiles of some sizes and remembers what it was asked for, and when."""

    tiles: tuple[int, ...] = (32, 64)
    log: list[str]
    wanted: Sequence[Compilation]
    seconds: float

    def ahead(self, wanted: Sequence[Compilation], seconds: float) -> list[bool]:
        self.wanted, self.seconds, self.log = wanted, seconds, []
        return [each.config["tile"] in self.tiles for each in wanted]

    def bench(self, subject: Subject, bucket: Bucket, config: Any, *asked: Any) -> Any:
        self.log.append(f"{subject.head_size} {bucket} {text_of(config)}")
        return super().bench(subject, bucket, config, *asked)

    def race(self, subject: Subject, bucket: Bucket, *asked: Any) -> Any:
        self.log.append(f"{subject.head_size} {bucket} race")
        self._passed += 1.0
        return super().race(subject, bucket, *asked)


class Silent:
    def begin(self, *_: Any) -> None: ...
    def trial(self, *_: Any) -> None: ...
    def race(self, *_: Any) -> None: ...
    def note(self, *_: Any) -> None: ...


def run(recorded: Recording, folder: Path, runner: Replay, **asked: Any) -> Campaign:
    with Journal(folder / "journal.sqlite") as journal:
        campaign = Campaign(
            resolve.resolve("h200").device,
            recorded.spaces,
            runner,
            journal,
            {"triton": "3.6.0"},
            lambda space: folder / "tuned/h200.yaml",
            replace(EFFORTS["quick"], rounds=20),
            "random",
            Silent(),
            source="simulated",
            **asked,
        )
        campaign.run()
    return campaign


def test_every_kernel_of_every_space_is_compiled_first_once_and_by_turns(recorded: Recording, tmp_path: Path) -> None:
    runner = Compiling(recorded)

    run(recorded, tmp_path, runner)

    found = [(each.subject.head_size, text_of(each.config), list(map(str, each.buckets))) for each in runner.wanted]
    assert found == [
        # Whole contexts and cut ones are kernels of their own; into how many parts they are cut makes no other.
        (128, "tile=32 programs_per_unit=2", ["b1-c8192", "b32-c8192"]),
        (64, "tile=32 programs_per_unit=2", ["b32-c8192"]),
        (128, "tile=64 programs_per_unit=2", ["b1-c8192", "b32-c8192"]),
        (64, "tile=32 programs_per_unit=4", ["b32-c8192"]),
        (64, "tile=64 programs_per_unit=2", ["b32-c8192"]),
        (64, "tile=64 programs_per_unit=4", ["b32-c8192"]),
    ]
    assert math.isinf(runner.seconds)


def test_every_subject_has_its_winner_in_one_tuned_file(recorded: Recording, tmp_path: Path) -> None:
    campaign = run(recorded, tmp_path, Compiling(recorded))

    found = read(tmp_path / "tuned/h200.yaml", simulated=True)
    assert found.faults == ()
    assert {(each.head_size, each.group, each.bucket, each.config["tile"]) for each in found.entries} == {
        *((128, 4, bucket, 64) for bucket in BUCKETS[WIDE]),
        (64, 1, "b32-c8192", 64),
    }
    assert not any(verdict.cut_off for verdict in campaign.verdicts)


def test_where_time_ran_out_what_was_compiled_is_tried_first(recorded: Recording, tmp_path: Path) -> None:
    runner = Compiling(recorded)
    runner.tiles = (64,)

    run(recorded, tmp_path, runner, budget_s=1000.0)

    assert runner.seconds == 500.0
    for bucket in ("128 b1-c8192", "64 b32-c8192"):
        tried = [line.split()[2] for line in runner.log if line.startswith(f"{bucket} tile")]
        assert tried == ["tile=32", *["tile=64"] * 3, *["tile=32"] * 2]  # the default is the first in any case


def test_a_budget_is_shared_by_buckets(recorded: Recording, tmp_path: Path) -> None:
    runner = Compiling(recorded)

    campaign = run(recorded, tmp_path, runner, budget_s=20.0)

    # Three quarters of 20 s are those of three buckets; of each share a quarter is kept for races.
    first = [line for line in runner.log if line.startswith("128 ") and "race" not in line]
    second = [line for line in runner.log if line.startswith("64 ") and "race" not in line]
    assert 11 <= len(first) * TRIAL_S <= 15
    assert 2 <= len(second) * TRIAL_S <= 5
    assert {str(each.bucket) for each in campaign.verdicts} == {*BUCKETS[WIDE]}
    assert all(each.winner is not None for each in campaign.verdicts)


def test_what_the_last_subject_leaves_over_serves_one_that_was_cut_off(recorded: Recording, tmp_path: Path) -> None:
    wide, narrow = recorded.spaces
    known, turned = replace(recorded, spaces=(wide,)), replace(recorded, spaces=(narrow, wide))
    run(known, tmp_path, Compiling(known))  # so that it needs nothing of its share
    runner = Compiling(turned)

    campaign = run(turned, tmp_path, runner, budget_s=12.0)

    assert len([line for line in runner.log if line.startswith("64 ") and "race" not in line]) == len(CONFIGS)
    assert [(each.subject, each.cut_off) for each in campaign.verdicts if each.subject == NARROW] == [(NARROW, False)]
    assert len(campaign.verdicts) == 4


def test_races_are_repeated_behind_the_last_winner_and_no_longer_than_the_budget(
    recorded: Recording, tmp_path: Path
) -> None:
    free, bound = Compiling(recorded), Compiling(recorded)

    campaign = run(recorded, tmp_path / "free", free, repeats=3)
    short = run(recorded, tmp_path / "bound", bound, repeats=1000, budget_s=40.0)

    races = [place for place, line in enumerate(free.log) if line.endswith("race")]
    assert len(campaign.repeated) == 2 * 4
    assert races[4:] == list(range(len(free.log) - 8, len(free.log)))
    assert 4 <= len(short.repeated) < 999 * 4
    assert bound.clock() <= 41.0


def test_a_second_run_compiles_and_tries_nothing(recorded: Recording, tmp_path: Path) -> None:
    first = run(recorded, tmp_path, Compiling(recorded))
    again = Compiling(recorded)

    second = run(recorded, tmp_path, again)

    assert list(again.wanted) == []
    assert again.log == []
    assert [each.winner for each in second.verdicts] == [each.winner for each in first.verdicts]
