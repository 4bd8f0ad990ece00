"""The stages `tune` and `space` of `ci/gpu`: what the tuner finds on a card, and what it shows of itself.

`tune`: a normal run, its finalists raced ten times. `space`: every config of the same space, recorded for replays,
shared among all cards alike. Unless asked otherwise both are of int4 decode at head 128, group 4, in three buckets;
`kvreg.validation.gpu.tunable` says what else there is. Both go on from the journal in the work folder, which the
archive carries, beside the tuned file as a checkout has it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvreg.core.buckets import Bucket
from kvreg.core.devices import folder_name
from kvreg.validation.gpu import tunable
from kvreg.validation.gpu.rig import Rig, in_checkout
from kvreg.validation.gpu.session import CUT_OFF, FAILED, OK
from kvreg.validation.machine import Machine
from kvreg_tuning import recording, search
from kvreg_tuning.campaign import Campaign
from kvreg_tuning.effort import EFFORTS, LEAST_ROUNDS, Effort, Strategy
from kvreg_tuning.journal import Journal
from kvreg_tuning.outcomes import MEANING, Trial
from kvreg_tuning.recording import Recording
from kvreg_tuning.runner import WorkerRunner
from kvreg_tuning.session import Verdict
from kvreg_tuning.spaces import Space
from kvreg_tuning.subjects import Subject, text_of

SAVE_S = 15.0
"""Kept of the time that is left for the last race and for writing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stage is to do."""

    machine: Machine
    versions: Mapping[str, str | None]
    work: Path
    """Folder of the journal, the tuned file and the recording."""
    left_s: float
    smoke: bool
    note: Callable[[str], None]
    cards: tuple[Mapping[str, str], ...]
    """What shows a process one card, for each card alike."""
    spaces: tuple[Space, ...]
    races: int

    def tuned_file(self, of: Space) -> Path:
        """Return where winners go: as in the checkout. Tiny sizes are tried with the path alone, and ship nowhere."""
        inside = Path("tuned") if self.smoke or of.tuned_dir is None else in_checkout(of.tuned_dir)
        return self.work / inside / f"{folder_name(self.machine.device.key)}.yaml"


def tune(rig: Rig) -> tuple[str, str]:
    """Tune, and race the finalists again and again."""
    return _stage(rig, "tune", _search_and_race)


def space(rig: Rig) -> tuple[str, str]:
    """Record whole spaces."""
    return _stage(rig, "space", _record_all)


def _stage(rig: Rig, name: str, part: Callable[[Asked], tuple[list[dict[str, Any]], bool]]) -> tuple[str, str]:
    session = rig.session
    asked = Asked(
        rig.machine,
        rig.run.versions,
        session.work,
        rig.left_s(),
        rig.options.smoke,
        session.note,
        rig.run.cards,
        tunable.spaces(rig.options, rig.machine.device),
        2 if rig.options.smoke else rig.options.races,
    )
    found, cut_off = part(asked)
    session.results[name] = found
    wrong_ones = [each for each in found if each["best_us"] is None]
    gains = ", ".join(f"{each['variant']} {each['shape']} {each['bucket']} {each['gain']:+.1%}" for each in found)
    return (FAILED if wrong_ones else CUT_OFF if cut_off else OK), gains


def _search_and_race(asked: Asked) -> tuple[list[dict[str, Any]], bool]:
    """Run the search and the races; returns a result for each bucket, and whether the time ended it."""
    effort = EFFORTS["quick" if asked.smoke else "normal"]
    strategy: Strategy = effort.strategy if search.installed(effort.strategy) else "random"
    campaign = _run(asked, asked.spaces, effort, strategy, repeats=asked.races, target=asked.tuned_file)
    for path in sorted({asked.tuned_file(space).relative_to(asked.work).as_posix() for space in asked.spaces}):
        asked.note(f"tune: winners are in {path} of the archive")
    missing = len(campaign.verdicts) * (asked.races - 1) - len(campaign.repeated)
    found = [_result(campaign, verdict) for verdict in campaign.verdicts]
    return found, _cut_off([campaign]) or missing > 0


def _record_all(asked: Asked) -> tuple[list[dict[str, Any]], bool]:
    """Try every config, each card a share of them, and write the recording; returns as `_search_and_race` does.

    Nothing is raced: a replay races what it finds.
    """
    spaces = asked.spaces
    effort = replace(EFFORTS["full"], finalists=0, rounds=LEAST_ROUNDS)
    with ThreadPoolExecutor(len(asked.cards)) as pool:
        campaigns = list(pool.map(lambda number: _run_share(asked, spaces, effort, number), range(len(asked.cards))))
    with Journal(_journal(asked)) as journal:
        path = asked.work / "tune" / f"{folder_name(asked.machine.device.key)}-int4.jsonl.gz"
        count = recording.write(path, asked.machine.device.key, campaigns[0].versions, spaces, journal)
    asked.note(f"{count} trials recorded in {path.name}")
    recorded = recording.read(path)
    return [_recorded(recorded, space, bucket) for space in spaces for bucket in space.buckets], _cut_off(campaigns)


def _run_share(asked: Asked, spaces: Sequence[Space], effort: Effort, number: int) -> Campaign:
    """Run every n-th config of each space on one of n cards."""
    of = len(asked.cards)
    return _run(
        asked, [_share(space, number, of) for space in spaces], effort, "exhaustive", card=asked.cards[number], of=of
    )


def _share(space: Space, number: int, of: int) -> Space:
    default, *others = space.candidates.configs
    pruned = space.candidates.pruned if number == 0 else ()
    candidates = replace(space.candidates, configs=(default, *others[number::of]), pruned=pruned)
    return replace(space, candidates=candidates)


def _cut_off(campaigns: Sequence[Campaign]) -> bool:
    return any(each.cut_off for campaign in campaigns for each in campaign.verdicts)


def _run(
    asked: Asked,
    spaces: Sequence[Space],
    effort: Effort,
    strategy: Strategy,
    *,
    repeats: int = 1,
    target: Callable[[Space], Path] | None = None,
    card: Mapping[str, str] | None = None,
    of: int = 1,
) -> Campaign:
    """Run a campaign on one card, the first where none is named, with its share of the cores."""
    versions = {
        name: str(asked.versions[name]) for name in ("triton", "torch", "driver", "card") if asked.versions.get(name)
    }
    environment = {**asked.machine.environment, **(card or {})}
    runner = WorkerRunner(asked.machine.place, environment=environment, jobs=max(1, (os.cpu_count() or 1) // of))
    with Journal(_journal(asked)) as journal, runner:
        campaign = Campaign(
            asked.machine.device,
            spaces,
            runner,
            journal,
            versions,
            target,
            effort,
            strategy,
            Noted(asked.note),
            budget_s=None if asked.left_s == float("inf") else max(1.0, asked.left_s - SAVE_S),
            repeats=repeats,
        )
        campaign.run()
    return campaign


def _journal(asked: Asked) -> Path:
    return asked.work / "tune" / "journal.sqlite"


def _result(campaign: Campaign, verdict: Verdict) -> dict[str, Any]:
    winner, decision = verdict.winner, verdict.decision
    again = [each for each in campaign.repeated if (each.subject, each.bucket) == (verdict.subject, verdict.bucket)]
    same = [each for each in again if each.winner is not None and winner is not None and each.winner == winner]
    standing = decision.of(decision.winner) if decision is not None else None
    # Less than what counts as a gain stays in the results: it may be worth a default.
    fastest = None if decision is None else verdict.contestants[decision.fastest]
    return {
        "variant": verdict.subject.variant,
        "shape": _shape(verdict.subject),
        "bucket": str(verdict.bucket),
        "effort": campaign.effort.name,
        "default_us": verdict.default.us,
        "best_us": None if standing is None else standing.us,
        "gain": verdict.improvement,
        "tie": None if decision is None else decision.tie,
        "config": None if winner is None else text_of(winner.config),
        "fastest_us": None if decision is None else decision.of(decision.fastest).us,
        "fastest": None if fastest is None else text_of(fastest.config),
        "races": 1 + len(again),
        "same_winner": 1 + len(same),
        "trials": dict(verdict.counts),
        "cut_off": verdict.cut_off,
    }


def _recorded(recorded: Recording, space: Space, bucket: Bucket) -> dict[str, Any]:
    """Return what a recording says of a bucket: how much of the space it holds, and the fastest config."""
    of = space.subject
    counts = Counter(
        str(trial.result)
        for (subject, where, _), trial in recorded.trials.items()
        if (subject, where) == (of, str(bucket))
    )
    best = recorded.best(of, bucket)
    default = recorded.trials.get((of, str(bucket), text_of(space.candidates.configs[0])))
    best_us = None if best is None else best.us
    default_us = None if default is None else default.us
    return {
        "variant": of.variant,
        "shape": _shape(of),
        "bucket": str(bucket),
        "configs": len(space.candidates.configs),
        "trials": dict(counts),
        "default_us": default_us,
        "best_us": best_us,
        "config": None if best is None else text_of(best.config),
        "gain": 1.0 - best_us / default_us if best_us and default_us else 0.0,
    }


def _shape(of: Subject) -> str:
    return f"{of.group * of.kv_heads}/{of.kv_heads} x {of.head_size}"


class Noted:
    """A view that writes what matters into the log of the session."""

    EVERY_S = 20.0

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._done = self._known = 0
        self._shown = time.monotonic()

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Note the subject."""
        self._done = self._known = 0
        where = ", ".join(map(str, buckets))
        self.note(f"tune: {subject} in {where}: {planned} configs beside the default, {pruned} pruned")

    def trial(self, trial: Trial, known: bool) -> None:
        """Count a trial, note one that failed, and now and then how far it is."""
        self._done += 1
        self._known += known
        if trial.us is None and not known:
            self.note(f"tune: {trial.bucket}: {MEANING[trial.result]}: {text_of(trial.config)}: {trial.reason}")
        if time.monotonic() - self._shown > self.EVERY_S:
            self._shown = time.monotonic()
            self.note(f"tune: {self._done} trials, {self._known} of them known")

    def race(self, bucket: Bucket, contestants: int) -> None:
        """Note a race."""
        if contestants > 1:
            self.note(f"tune: {bucket}: {contestants - 1} finalists against the default")
