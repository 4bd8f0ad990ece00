"""One subject from its space to the winner of each bucket; every step resumes from the journal.

    enumerate > prune, with reasons > compile > gate > time > race the finalists > replace the default, or keep it

The default is the first trial and in every race. A trial that hangs, crashes or is wrong is a row like any other and
the run goes on; only a device that no longer answers ends it. Trials are asked for in an order that depends on nothing
but the space, the seed and earlier results, so that a killed run, called again, reads its finished trials from the
journal and goes on with the next one.

Longer than its neighbours: search, trials and races share what was found, the journal and the budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvreg.core.buckets import Bucket
from kvreg.core.errors import DeviceUnavailable, wrong
from kvreg_tuning import search as searches
from kvreg_tuning.effort import FINAL_SHARE, LEAST_ROUNDS, SLOW_FACTOR, Effort, Strategy
from kvreg_tuning.finalists import Decision, decide
from kvreg_tuning.journal import Journal, key_of
from kvreg_tuning.outcomes import Trial, failure
from kvreg_tuning.runner import Compilation, Runner
from kvreg_tuning.spaces import Candidates
from kvreg_tuning.subjects import Config, Subject, text_of
from kvreg_tuning.worker import Outcome

RACE_SEEDS = 1000
"""Seeds of the gate that is passed once more in a race begin here, far from those of the trials."""

RACE_SLACK = 2.0
RACE_START_S = 10.0
"""A race may take twice what its trials let expect, and some seconds to make its buffers, even when the budget is
spent: a run must end with a winner."""


class View(Protocol):
    """What a session tells whoever watches."""

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Say that a subject begins; `planned` trials at most, None for the whole space."""

    def trial(self, trial: Trial, known: bool) -> None:
        """Say that a trial is finished, or known from the journal."""

    def race(self, bucket: Bucket, contestants: int) -> None:
        """Say that a race begins."""

    def note(self, text: str) -> None:
        """Say something else."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one bucket."""

    subject: Subject
    bucket: Bucket
    default: Trial
    winner: Trial | None
    """None when nothing was right."""
    decision: Decision | None
    contestants: tuple[Trial, ...] = ()
    """In the order of the decision's places; the default is the first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Trials of the bucket by result."""
    cut_off: bool = False
    """Whether the budget ended the search before its plan did."""
    method: str = ""
    clock_mhz: int | None = None

    @property
    def improvement(self) -> float:
        """Part of the default's time that the winner saves; 0 where the default won."""
        if self.decision is None or self.winner is None or self.decision.winner == 0:
            return 0.0
        return self.decision.of(self.decision.winner).over_default.gain


@dataclass(slots=True)
class Session:
    """Tunes one subject."""

    subject: Subject
    buckets: tuple[Bucket, ...]
    candidates: Candidates
    runner: Runner
    journal: Journal
    identity: Mapping[str, Any]
    """What every row's result depends on beside the subject: kernel hash, versions, card."""
    effort: Effort
    strategy: Strategy
    view: View
    stored: Mapping[str, Config] = field(default_factory=dict)
    """Bucket -> the config of the present tuned entry."""
    budget_s: float | None = None
    seed: int = 0
    repeat: int = 0
    """Number of the race, where races are repeated to see how sure they are."""
    _began: float = 0.0
    _found: dict[str, list[Trial]] = field(default_factory=dict)
    _launch: dict[tuple[str, str], str] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)

    def ahead(self) -> list[Compilation]:
        """Return what is to be compiled before the first trial: each kernel of what is not known yet, once.

        Empty where a search tries a part of the space, for only its results tell which. Raises DeviceUnavailable.
        """
        if self._planned() is not None:
            return []
        self._launches()
        left_out, forms, wanted = self.candidates.left_out(), set[str](), []
        for config in self.candidates.configs:
            new = {}
            for bucket in self.buckets:
                form = self._form(config, bucket)
                known = (text_of(config), str(bucket)) in left_out or self._known(config, str(bucket)) is not None
                if not known and form not in forms:
                    new.setdefault(form, bucket)
            forms.update(new)
            if new:
                wanted.append(Compilation(self.subject, tuple(new.values()), config))
        return wanted

    def put_off(self, late: Compilation) -> None:
        """Try the configs of a kernel last: it was not compiled ahead."""
        self._late.update(self._form(late.config, bucket) for bucket in late.buckets)

    def run(self) -> list[Verdict]:
        """Return the verdict of every bucket; raises DeviceUnavailable when the device is lost."""
        self._began = self.runner.clock()
        default, *others = self.candidates.configs
        self._found = {str(bucket): [] for bucket in self.buckets}
        self._launches()
        planned = self._planned()
        if self._late and planned is None:
            others.sort(key=lambda each: any(self._form(each, bucket) in self._late for bucket in self.buckets))
        self.view.begin(self.subject, self.buckets, planned or len(others), len(self.candidates.pruned))
        self._write_pruned()
        self._try([default])
        # As the space spells it: a file sorts its parameters by name.
        extra = [config for config in others if config in self.stored.values()]
        strategy: Strategy = self.strategy if planned is not None else "exhaustive"
        cut_off = self._search(searches.make(strategy, others, self.candidates.knobs, self.seed), planned, extra)
        return [self._verdict(bucket, cut_off) for bucket in self.buckets]

    def race_again(self, left_s: float | None = None) -> list[Verdict]:
        """Race the same finalists of a finished run once more, under the number `repeat`, in what is left."""
        self.budget_s = None if left_s is None else self.runner.clock() - self._began + left_s
        return [self._verdict(bucket, False) for bucket in self.buckets]

    def _planned(self) -> int | None:
        """Return how many configs are tried beside the default; None for every one."""
        trials = self.effort.trials
        return trials if trials is not None and trials < len(self.candidates.configs) - 1 else None

    def _form(self, config: Config, bucket: Bucket) -> str:
        """Return what of a launch is compiled: whether contexts are cut is part of it, in how many parts is not."""
        kernel, cut, _ = self._launch[text_of(config), str(bucket)].partition("splits=")
        return kernel + cut

    def _launches(self) -> None:
        """Ask once what each config comes down to, so that one launch is one trial."""
        if self._launch:
            return
        for bucket in self.buckets:
            outcome = self.runner.launches(self.subject, bucket, self.candidates.configs)
            self._require_device(outcome)
            lines = outcome.value if outcome.status == "ok" else [text_of(each) for each in self.candidates.configs]
            for config, line in zip(self.candidates.configs, lines, strict=True):
                self._launch[text_of(config), str(bucket)] = line

    def _write_pruned(self) -> None:
        rows = [Trial(config, bucket, "constraint", reason) for config, bucket, reason in self.candidates.pruned]
        new = [each for each in rows if self._known(each.config, each.bucket) is None]
        self.journal.add(self.subject, self.identity, new)
        for each in rows:
            self._found[each.bucket].append(each)

    def _search(self, search: searches.Search, planned: int | None, extra: Sequence[Config]) -> bool:
        """Try what the search asks for; returns whether the budget ended it."""
        self._try(extra)
        done = 0
        while planned is None or done < planned:
            if self._left_s(1.0 - FINAL_SHARE) <= 0:
                return True
            asked = search.ask(self.effort.batch if planned is None else min(self.effort.batch, planned - done))
            if not asked:
                return False
            done += len(asked)
            for config, cost in self._try(asked):
                search.tell(config, cost)
        return False

    def _try(self, configs: Sequence[Config]) -> list[tuple[Config, float | None]]:
        """Run what the journal does not know of these configs; returns each with its cost, None where it has none.

        The cost is the mean over the buckets of the logarithm of its time over the default's.
        """
        left_out = self.candidates.left_out()
        wanted = {
            text_of(config): [bucket for bucket in self.buckets if (text_of(config), str(bucket)) not in left_out]
            for config in configs
        }
        open_ones = [
            config
            for config in configs
            if any(self._known(config, str(bucket)) is None for bucket in wanted[text_of(config)])
        ]
        compiled = self._compile(open_ones, wanted)
        found = []
        for config in configs:
            trials = [self._one(config, bucket, compiled) for bucket in wanted[text_of(config)]]
            found.append((config, self._cost([each for each in trials if each is not None])))
        return found

    def _compile(self, configs: Sequence[Config], wanted: Mapping[str, Sequence[Bucket]]) -> dict[str, Outcome]:
        if not configs:
            return {}
        buckets = [bucket for bucket in self.buckets if any(bucket in wanted[text_of(each)] for each in configs)]
        outcomes = self.runner.compile(self.subject, buckets, configs, max(map(self._allowance, buckets)))
        for outcome in outcomes:
            self._require_device(outcome)
        return {text_of(config): outcome for config, outcome in zip(configs, outcomes, strict=True)}

    def _one(self, config: Config, bucket: Bucket, compiled: Mapping[str, Outcome]) -> Trial | None:
        """Return the trial of a config in a bucket: known, equal to another launch's, or run now."""
        known = self._known(config, str(bucket))
        if known is None and self._allowance(bucket) <= 0:
            return None
        trial = known or self._twin(config, bucket) or self._run(config, bucket, compiled[text_of(config)])
        if known is None:
            if trial.result == "timeout" and self._allowance(bucket) <= 0:
                return None  # the budget ended it and no limit of its own: a later run tries it again
            self.journal.add(self.subject, self.identity, [trial])
        self._found[str(bucket)].append(trial)
        self.view.trial(trial, known is not None)
        return trial

    def _twin(self, config: Config, bucket: Bucket) -> Trial | None:
        """Return the result of another config that is the same launch in this bucket."""
        launch = self._launch[text_of(config), str(bucket)]
        for each in self._found[str(bucket)]:
            if each.launch == launch and each.result != "constraint":
                return replace(each, config=config, compile_s=0.0, gate_s=0.0, bench_s=0.0)
        return None

    def _run(self, config: Config, bucket: Bucket, compiled: Outcome) -> Trial:
        trial = Trial(
            config,
            str(bucket),
            "ok",
            compile_s=compiled.elapsed_s,
            launch=self._launch[text_of(config), str(bucket)],
        )
        if compiled.status != "ok":
            result, reason = failure(compiled, "compile")
            return replace(trial, result=result, reason=reason)
        trial = replace(trial, resources=compiled.value["resources"])
        left = self._allowance(bucket)
        judged = self.runner.gate(self.subject, bucket, config, range(self.effort.seeds), left)
        self._require_device(judged)
        trial = replace(trial, gate_s=judged.elapsed_s)
        if judged.status != "ok":
            result, reason = failure(judged, "gate")
            return replace(trial, result=result, reason=reason)
        if not judged.value["ok"]:
            return replace(trial, result="wrong", reason="; ".join(judged.value["failures"]))
        gate = {name: judged.value[name] for name in ("e", "cosine", "seeds", "bits")}
        best = min((each.us for each in self._found[str(bucket)] if each.us is not None), default=None)
        slow_us = None if best is None else best * SLOW_FACTOR
        timed = self.runner.bench(self.subject, bucket, config, self.effort, slow_us, left)
        self._require_device(timed)
        trial = replace(trial, gate=gate, bench_s=timed.elapsed_s)
        if timed.status != "ok":
            result, reason = failure(timed, "bench")
            return replace(trial, result=result, reason=reason)
        found = timed.value
        trial = replace(trial, us=found["us"], spread=found["spread"], samples=found["samples"])
        if found["slow"]:
            return replace(trial, result="slow", reason=f"over {SLOW_FACTOR:g} times the best so far, {best:.4g} us")
        return trial

    def _cost(self, trials: Sequence[Trial]) -> float | None:
        costs = []
        for trial in trials:
            default = self._default(trial.bucket)
            if trial.us is None or default is None or default.us is None:
                return None
            costs.append(math.log(trial.us / default.us))
        return sum(costs) / len(costs) if costs else None

    def _verdict(self, bucket: Bucket, cut_off: bool) -> Verdict:
        trials = self._found[str(bucket)]
        counts: dict[str, int] = dict(Counter(str(each.result) for each in trials))
        default = self._default(str(bucket))
        assert default is not None  # it was tried first, whatever the budget
        contestants = self._affordable(self._contestants(default, bucket))
        record = self._race(bucket, contestants)
        verdict = Verdict(self.subject, bucket, default, None, None, contestants, counts, cut_off)
        if record is None or not any(record["samples_us"]):
            return verdict
        for trial, failures in zip(contestants, record["failures"], strict=True):
            if failures:
                self.view.note(f"{self.subject} {bucket}: out of the race: {text_of(trial.config)}: {failures[0]}")
        stored = self.stored.get(str(bucket))
        place = next((i for i, each in enumerate(contestants) if i and each.config == stored), None)
        decision = decide(record["samples_us"], stored=place)
        return replace(
            verdict,
            winner=contestants[decision.winner],
            decision=decision,
            method=record["method"],
            clock_mhz=record["clock_mhz"],
        )

    def _contestants(self, default: Trial, bucket: Bucket) -> tuple[Trial, ...]:
        """Return the default, then the fastest launches and the stored config in the order of the space."""
        trials = self._found[str(bucket)]
        launches: dict[str, Trial] = {}
        for each in trials:
            if each.timed and each.result == "ok" and each.launch != default.launch:
                launches.setdefault(each.launch, each)
        fastest = sorted(launches.values(), key=lambda each: each.us or math.inf)[: self.effort.finalists]
        stored = self.stored.get(str(bucket))
        if stored is not None:
            fastest += [each for each in trials if each.config == stored and each.timed and each not in fastest][:1]
            fastest = [each for each in fastest if each.launch != default.launch]
        order = {text_of(config): place for place, config in enumerate(self.candidates.configs)}
        return (default, *sorted(fastest, key=lambda each: order[text_of(each.config)]))

    def _affordable(self, contestants: tuple[Trial, ...]) -> tuple[Trial, ...]:
        """Leave out the slowest finalists until a race of fewest rounds fits what is left; one of them stays."""
        left = self._left_s()
        while len(contestants) > 2 and _race_seconds(contestants)[1] > left:
            slowest = max(contestants[1:], key=lambda each: each.us or math.inf)
            contestants = tuple(each for each in contestants if each is not slowest)
        return contestants

    def _race(self, bucket: Bucket, contestants: tuple[Trial, ...]) -> Mapping[str, Any] | None:
        """Return the samples of a race: known, or run now.

        Where a contestant ends the race, each one meets the default alone first.
        """
        names = [text_of(each.config) for each in contestants]
        key = key_of(self.subject, self.identity, str(bucket), f"race {self.repeat} of {self.effort.rounds}: {names}")
        known = self.journal.race(key)
        if known is not None:
            return known
        self.view.race(bucket, len(contestants))
        outcome = self._raced(bucket, contestants)
        record = dict(outcome.value) if outcome.status == "ok" else self._one_by_one(bucket, contestants)
        if record is not None:
            record["configs"] = [dict(each.config) for each in contestants]
            self.journal.add_race(key, self.subject, self.identity, str(bucket), record)
        return record

    def _raced(self, bucket: Bucket, contestants: Sequence[Trial]) -> Outcome:
        first = RACE_SEEDS * (1 + self.repeat)
        seeds = range(first, first + self.effort.seeds)
        configs = [each.config for each in contestants]
        left = self._left_s()
        judging, needed = _race_seconds(contestants)
        seconds = max(0.0, min(self.effort.race_s, left - judging))
        limit = max(left, RACE_SLACK * needed + RACE_START_S)
        outcome = self.runner.race(self.subject, bucket, configs, self.effort.rounds, seconds, seeds, limit)
        self._require_device(outcome)
        return outcome

    def _one_by_one(self, bucket: Bucket, contestants: tuple[Trial, ...]) -> dict[str, Any] | None:
        """Race each contestant against the default alone: the one that hangs or crashes is out, with its reason."""
        default, *others = contestants
        failures: list[list[str]] = [[] for _ in contestants]
        passed = []
        for place, each in enumerate(others, start=1):
            outcome = self._raced(bucket, (default, each))
            if outcome.status == "ok":
                passed.append(place)
            else:
                failures[place] = [f"{outcome.status}: {outcome.error}"]
        together = (default, *(contestants[place] for place in passed))
        outcome = self._raced(bucket, together)
        if outcome.status != "ok":
            self.view.note(f"{self.subject} {bucket}: no race: {outcome.status}: {outcome.error}")
            return None
        samples: list[list[float]] = [[] for _ in contestants]
        for index, place in enumerate((0, *passed)):
            samples[place] = outcome.value["samples_us"][index]
            failures[place] += outcome.value["failures"][index]
        return {**outcome.value, "samples_us": samples, "failures": failures}

    def _default(self, bucket: str) -> Trial | None:
        """Return the default's trial; None before it was run."""
        return next((each for each in self._found[bucket] if each.result != "constraint"), None)

    def _allowance(self, bucket: Bucket) -> float:
        """Return the seconds that a trial may take: those of the budget, and for the default all that it needs."""
        return math.inf if self._default(str(bucket)) is None else self._left_s()

    def _known(self, config: Config, bucket: str) -> Trial | None:
        return self.journal.trial(key_of(self.subject, self.identity, bucket, dict(config)))

    def _left_s(self, share: float = 1.0) -> float:
        """Return the seconds that are left of a share of the budget."""
        if self.budget_s is None:
            return math.inf
        return self.budget_s * share - (self.runner.clock() - self._began)

    def _require_device(self, outcome: Outcome) -> None:
        if outcome.device_lost:
            raise DeviceUnavailable(
                wrong(
                    f"device {self.subject.device}",
                    required="an answer",
                    found=outcome.error,
                    remedy="what is finished is in the journal; run the same command again once the card is back",
                )
            )


def _race_seconds(contestants: Sequence[Trial]) -> tuple[float, float]:
    """Return what judging the contestants once more takes, and that with the fewest rounds of timing."""
    judging = sum(each.gate_s for each in contestants)
    return judging, judging + LEAST_ROUNDS * sum(each.us or 0.0 for each in contestants) * 1e-6
