"""Recorded spaces: every trial of a run in one compressed file, and the runner that replays one without a card.

    {"schema": 1, "device": "h200", "versions": {...}, "spaces": [{subject, buckets, knobs, configs, kernel_hash}]}
    {"space": 0, "bucket": "b32-c8192", "config": {...}, "launch": "...", "result": "ok", "us": 85.2, ...}

A gzip of JSON lines. A replay answers with what was recorded, adds timing noise as wide as the recorded spread, and
counts time as it was spent then, so that searches, races and budgets can be judged on any machine.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvreg.core.buckets import Bucket
from kvreg.core.errors import BadFile, wrong
from kvreg.core.shards import replace_file
from kvreg_tuning import timing
from kvreg_tuning.effort import Effort
from kvreg_tuning.journal import Journal, Known
from kvreg_tuning.outcomes import RESULTS, Trial
from kvreg_tuning.spaces import Candidates, Space
from kvreg_tuning.subjects import Config, Subject, text_of
from kvreg_tuning.worker import Outcome

SCHEMA = 1
QUARTILES = 1.349
"""Width of the middle half of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded space of one device."""

    device: str
    versions: Mapping[str, str]
    spaces: tuple[Space, ...]
    trials: Mapping[tuple[Subject, str, str], Trial]
    """By subject, bucket and the config's text."""

    def best(self, subject: Subject, bucket: Bucket) -> Trial | None:
        """Return the fastest right config that was recorded."""
        timed = [
            trial
            for (of, where, _), trial in self.trials.items()
            if of == subject and where == str(bucket) and trial.us is not None and trial.result == "ok"
        ]
        return min(timed, key=lambda each: each.us or 0.0, default=None)

    def regret(self, subject: Subject, bucket: Bucket, config: Config) -> float | None:
        """Return how much slower a config was recorded than the best one: 0.05 is 5 %. None where it has no time."""
        best, chosen = self.best(subject, bucket), self.trials.get((subject, str(bucket), text_of(config)))
        if best is None or chosen is None or best.us is None or chosen.us is None:
            return None
        return chosen.us / best.us - 1.0


def write(path: Path, device: str, versions: Mapping[str, str], spaces: Sequence[Space], journal: Journal) -> int:
    """Write what the journal knows of these spaces, atomically; returns the number of trials.

    A config that was not tried in every bucket is not in the recording's space, so that no replay asks for it. Of a
    trial that several processes ran at once the first counts.
    """
    place = {space.subject: number for number, space in enumerate(spaces)}
    first: dict[tuple[Subject, str, str], Trial] = {}
    for known in journal.trials():
        if _belongs(known, place, spaces, versions):
            first.setdefault((known.subject, known.trial.bucket, text_of(known.trial.config)), known.trial)
    rows = [(subject, trial) for (subject, *_), trial in first.items()]
    counts = Counter((subject, text_of(trial.config)) for subject, trial in rows)
    head = {
        "schema": SCHEMA,
        "device": device,
        "versions": dict(versions),
        "spaces": [_space(space, counts) for space in spaces],
    }
    lines = [head, *({"space": place[subject], **_trial(trial)} for subject, trial in rows)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    replace_file(path, gzip.compress(text.encode(), mtime=0))
    return len(rows)


def read(path: Path) -> Recording:
    """Read a recording; raises BadFile for anything else."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            loaded = [json.loads(line) for line in stream]
        if not loaded:
            raise ValueError("an empty file")
        head, *lines = loaded
        if head["schema"] != SCHEMA:
            raise ValueError(f"schema {head['schema']}")
        trials: dict[tuple[Subject, str, str], Trial] = {}
        subjects = [Subject.from_json(each["subject"]) for each in head["spaces"]]
        for line in lines:
            subject = subjects[line.pop("space")]
            trial = Trial(**line)
            if trial.result not in RESULTS:
                raise ValueError(f"result {trial.result}")
            trials[subject, trial.bucket, text_of(trial.config)] = trial
        spaces = tuple(
            _read_space(each, [(of, trial) for (of, *_), trial in trials.items()]) for each in head["spaces"]
        )
        return Recording(head["device"], head["versions"], spaces, trials)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise BadFile(
            wrong(
                f"recording {path}",
                required=f"a recorded space of schema {SCHEMA}",
                found=str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__} {error}",
                remedy="`kvreg tune --record FILE` writes one",
            )
        ) from None


@dataclass(slots=True)
class Replay:
    """A runner that answers from a recording. Noise depends on seed and question alone, never on the order."""

    recording: Recording
    seed: int = 0
    _passed: float = 0.0

    def clock(self) -> float:
        """Return the seconds that the recorded trials took."""
        return self._passed

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


def _belongs(known: Known, place: Mapping[Subject, int], spaces: Sequence[Space], versions: Mapping[str, str]) -> bool:
    """Whether a row of the journal is one of these spaces, made with this kernel and these versions."""
    if known.subject not in place:
        return False
    space = spaces[place[known.subject]]
    same = known.identity == {"kernel_hash": space.kernel_hash, **versions}
    return same and known.trial.bucket in map(str, space.buckets)


def _space(space: Space, counts: Mapping[tuple[Subject, str], int]) -> dict[str, Any]:
    whole = [c for c in space.candidates.configs if counts[space.subject, text_of(c)] == len(space.buckets)]
    return {
        "subject": space.subject.to_json(),
        "buckets": [str(bucket) for bucket in space.buckets],
        "knobs": {name: list(values) for name, values in space.candidates.knobs.items()},
        "configs": [dict(config) for config in whole],
        "kernel_hash": space.kernel_hash,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    """Return a trial without what is empty."""
    return {name: value for name, value in asdict(trial).items() if value not in ("", None, {}, 0, 0.0)}


def _read_space(record: Mapping[str, Any], trials: Iterable[tuple[Subject, Trial]]) -> Space:
    subject = Subject.from_json(record["subject"])
    pruned = tuple(
        (trial.config, trial.bucket, trial.reason)
        for of, trial in trials
        if of == subject and trial.result == "constraint"
    )
    knobs = {name: tuple(values) for name, values in record["knobs"].items()}
    buckets = tuple(map(Bucket.parse, record["buckets"]))
    return Space(subject, buckets, Candidates(knobs, tuple(record["configs"]), pruned), record["kernel_hash"])
