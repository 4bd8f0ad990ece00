"""The runner that replays a recorded space without a card.

It answers with what was recorded, adds timing noise as wide as the recorded spread, and counts time as it was spent
then, so that searches, races and budgets can be judged on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.core.buckets import Bucket
from kvreg_tuning import timing
from kvreg_tuning.effort import Effort
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.recording import Recording
from kvreg_tuning.runner import Compilation
from kvreg_tuning.subjects import Config, Subject, text_of
from kvreg_tuning.worker import Outcome

QUARTILES = 1.349
"""Width of the middle half of a normal distribution, in standard deviations."""


@dataclass(slots=True)
class Replay:
    """A runner that answers from a recording. Noise depends on seed and question alone, never on the order."""

    recording: Recording
    seed: int = 0
    _passed: float = 0.0

    def clock(self) -> float:
        """Return the seconds that the recorded trials took."""
        return self._passed

    def ahead(self, wanted: Sequence[Compilation], seconds: float) -> list[bool]:
        """Compile nothing: what compiling took is part of each recorded trial."""
        return [False] * len(wanted)

    def launches(self, subject: Subject, bucket: Bucket, configs: Sequence[Config]) -> Outcome:
        """Return the recorded launches."""
        return Outcome("ok", [self._launch(subject, bucket, config) for config in configs])

    def compile(
        self, subject: Subject, buckets: Sequence[Bucket], configs: Sequence[Config], left_s: float
    ) -> list[Outcome]:
        """Return the recorded outcomes; the longest of a batch is the time that it took."""
        outcomes = []
        for config in configs:
            trials = [trial for bucket in buckets if (trial := self._trial(subject, bucket, config)) is not None]
            seconds = max((each.compile_s for each in trials), default=0.0)
            failed = next((each for each in trials if _stage(each) == "compile"), None)
            resources = next((each.resources for each in trials if each.resources), {})
            value = {"kernels": 0, "resources": dict(resources)}
            outcomes.append(_failed(failed, seconds) if failed else Outcome("ok", value, elapsed_s=seconds))
        self._passed += max((each.elapsed_s for each in outcomes), default=0.0)
        return outcomes

    def gate(self, subject: Subject, bucket: Bucket, config: Config, seeds: Sequence[int], left_s: float) -> Outcome:
        """Return the recorded judgement."""
        trial = self._require(subject, bucket, config)
        self._passed += trial.gate_s
        if _stage(trial) == "gate":
            return _failed(trial, trial.gate_s)
        wrong_one = trial.result == "wrong"
        gate = {"e": None, "cosine": None, "seeds": len(seeds), "bits": "", **trial.gate}
        value = {"ok": not wrong_one, "failures": [trial.reason] if wrong_one else [], **gate}
        return Outcome("ok", value, elapsed_s=trial.gate_s)

    def bench(
        self, subject: Subject, bucket: Bucket, config: Config, effort: Effort, slow_us: float | None, left_s: float
    ) -> Outcome:
        """Return the recorded time with noise."""
        trial = self._require(subject, bucket, config)
        self._passed += trial.bench_s
        if _stage(trial) == "bench" or trial.us is None:
            return _failed(trial, trial.bench_s)
        samples = self._samples(trial, subject, "bench", effort.samples)
        found = timing.summary(samples, "host")
        slow = slow_us is not None and found.us > slow_us
        value = {"us": found.us, "spread": found.spread, "samples": len(samples), "method": "replay", "slow": slow}
        return Outcome("ok", value, elapsed_s=trial.bench_s)

    def race(
        self,
        subject: Subject,
        bucket: Bucket,
        configs: Sequence[Config],
        rounds: int,
        seconds: float,
        seeds: Sequence[int],
        left_s: float,
    ) -> Outcome:
        """Return recorded times with noise, round by round; races of other seeds draw anew."""
        trials = [self._require(subject, bucket, config) for config in configs]
        right = [each.timed for each in trials]
        samples = [
            self._samples(each, subject, f"race {list(seeds)}", rounds) if ok else []
            for each, ok in zip(trials, right, strict=True)
        ]
        seconds = sum(map(sum, samples)) * 1e-6
        self._passed += seconds
        failures = [[] if ok else [each.reason] for each, ok in zip(trials, right, strict=True)]
        value = {"failures": failures, "samples_us": samples, "method": "replay", "clock_mhz": None}
        return Outcome("ok", value, elapsed_s=seconds)

    def _launch(self, subject: Subject, bucket: Bucket, config: Config) -> str:
        trial = self._trial(subject, bucket, config)
        return trial.launch if trial is not None and trial.launch else text_of(config)

    def _samples(self, trial: Trial, subject: Subject, what: str, count: int) -> list[float]:
        drawn = random.Random(f"{self.seed} {subject} {trial.bucket} {text_of(trial.config)} {what}")
        us, deviation = trial.us or 0.0, (trial.spread or 0.0) / QUARTILES
        return [us * max(0.1, 1.0 + drawn.gauss(0.0, deviation)) for _ in range(count)]

    def _trial(self, subject: Subject, bucket: Bucket, config: Config) -> Trial | None:
        return self.recording.trials.get((subject, str(bucket), text_of(config)))

    def _require(self, subject: Subject, bucket: Bucket, config: Config) -> Trial:
        """Return the trial; raises KeyError for a config that was never recorded, which no space of it holds."""
        return self.recording.trials[subject, str(bucket), text_of(config)]


def _stage(trial: Trial) -> str | None:
    """Return the stage that ended a trial before it had a time; `wrong` is a judgement and no such end."""
    if trial.result == "compile":
        return "compile"
    if trial.result in ("resource", "timeout", "crash"):
        return trial.reason.partition(":")[0]
    return None


def _failed(trial: Trial, seconds: float) -> Outcome:
    """Return the worker's outcome that a failed trial was made of."""
    words = trial.reason if trial.result == "compile" else trial.reason.partition(": ")[2]
    if trial.result in ("timeout", "crash"):
        return Outcome("timeout" if trial.result == "timeout" else "crash", error=words, elapsed_s=seconds)
    kind = "OutOfResources" if trial.result == "resource" else "CompilationError"
    return Outcome("error", error=words, error_type=kind, elapsed_s=seconds)
