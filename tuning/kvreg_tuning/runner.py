"""Where trials run: the protocol that a session asks, and the one of killable workers on a real device.

A runner answers with `Outcome`s and never raises for what a config does. `clock` is the time that a budget counts in:
real seconds here, recorded ones in a simulation.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvreg.core.buckets import Bucket
from kvreg_tuning.effort import Effort
from kvreg_tuning.subjects import Config, Subject
from kvreg_tuning.worker import Outcome, Worker

COMPILE_TIMEOUT_S = 60.0
"""A compilation that takes longer blocks a search more than it could win; the slowest known one takes 32 s."""

TASK_TIMEOUT_S = {"card": 30.0, "host": 120.0}
"""For a gate or a timing: the first of a bucket also makes the batch, its reference and gigabytes of buffers."""

RACE_TIMEOUT_S = {"card": 120.0, "host": 300.0}

WORK = "kvreg_tuning.work:"


@dataclass(frozen=True, slots=True)
class Compilation:
    """What `Runner.ahead` compiles: a config as some buckets of a subject launch it."""

    subject: Subject
    buckets: tuple[Bucket, ...]
    config: Config


class Runner(Protocol):
    """Runs the parts of a trial."""

    def clock(self) -> float:
        """Return the seconds that a budget is counted in."""

    def ahead(self, wanted: Sequence[Compilation], seconds: float) -> list[bool]:
        """Compile for several subjects side by side, in the order given, for so many seconds at most.

        Returns which were finished: `compile` then finds them in the compiler's own cache. What could not be compiled
        is finished, too, and `compile` says why.
        """

    def launches(self, subject: Subject, bucket: Bucket, configs: Sequence[Config]) -> Outcome:
        """Return what each config comes down to: [text]."""

    def compile(
        self, subject: Subject, buckets: Sequence[Bucket], configs: Sequence[Config], left_s: float
    ) -> list[Outcome]:
        """Compile configs side by side; one outcome each, in their order: {kernels, resources}."""

    def gate(self, subject: Subject, bucket: Bucket, config: Config, seeds: Sequence[int], left_s: float) -> Outcome:
        """Judge a config: {ok, failures, e, cosine, seeds, bits}."""

    def bench(
        self, subject: Subject, bucket: Bucket, config: Config, effort: Effort, slow_us: float | None, left_s: float
    ) -> Outcome:
        """Time a config: {us, spread, samples, method, slow}."""

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
        """Judge and time configs by turns: {failures, samples_us, method, clock_mhz}."""


class WorkerRunner:
    """Real trials: one worker that owns the device, and further ones that only compile. A context manager.

    The device is timed by one process at a time: `lock` is held while a clock runs, so that two tuners of one device
    do not measure each other.
    """

    def __init__(
        self,
        place: str,
        *,
        environment: Mapping[str, str] | None = None,
        jobs: int = 1,
        lock: Path | None = None,
        trial_timeout_s: float | None = None,
    ) -> None:
        """`trial_timeout_s`: limit of each part of a trial, races aside; None takes this module's."""
        self._place = place
        self._is_card = place != "cpu"
        self._kind = "card" if self._is_card else "host"
        self._worker = Worker(environment=environment)
        # Without a card, compiling is a first launch, which belongs where the rest of the trial runs.
        self._compilers = [Worker(environment=environment) for _ in range(jobs)] if self._is_card else []
        self._lock = lock
        self._compile_s = trial_timeout_s or COMPILE_TIMEOUT_S
        self._task_s = trial_timeout_s or TASK_TIMEOUT_S[self._kind]

    def __enter__(self) -> WorkerRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        for worker in (self._worker, *self._compilers):
            worker.close()

    def clock(self) -> float:
        """Return real seconds."""
        return time.monotonic()

    def launches(self, subject: Subject, bucket: Bucket, configs: Sequence[Config]) -> Outcome:
        """Ask the variant's launcher."""
        asked = {"subject": subject.to_json(), "bucket": str(bucket), "configs": [dict(each) for each in configs]}
        return self._worker.run(WORK + "launches", asked, timeout_s=self._task_s)

    def ahead(self, wanted: Sequence[Compilation], seconds: float) -> list[bool]:
        """Hand one after the other to the compiler that is free; without a card nothing is compiled."""
        deadline = self.clock() + seconds
        done = [False] * len(wanted)
        waiting, stop = iter(range(len(wanted))), threading.Event()
        turn = threading.Lock()

        def serve(worker: Worker) -> None:
            while not stop.is_set() and (left_s := deadline - self.clock()) > 0:
                with turn:
                    place = next(waiting, None)
                if place is None:
                    return
                asked, limit = self._compilation(wanted[place]), min(self._compile_s, left_s)
                outcome = worker.run(WORK + "compile_trial", asked, timeout_s=limit, stop=stop)
                done[place] = outcome.status != "timeout" or limit == self._compile_s

        with ThreadPoolExecutor(max(1, len(self._compilers))) as crew:
            try:
                for each in [crew.submit(serve, worker) for worker in self._compilers]:
                    each.result()
            except BaseException:  # an interrupted driver does not wait for its compilers
                stop.set()
                raise
        return done

    def compile(
        self, subject: Subject, buckets: Sequence[Bucket], configs: Sequence[Config], left_s: float
    ) -> list[Outcome]:
        """Compile in the compilers' processes, else launch once in the device's."""
        tasks = [self._compilation(Compilation(subject, tuple(buckets), config)) for config in configs]
        limit = _within(self._compile_s, left_s)

        stop = threading.Event()

        def serve(worker: Worker, share: range) -> list[tuple[int, Outcome]]:
            return [
                (place, worker.run(WORK + "compile_trial", tasks[place], timeout_s=limit, stop=stop))
                for place in share
                if not stop.is_set()
            ]

        if not self._compilers:
            return [outcome for _, outcome in serve(self._worker, range(len(tasks)))]
        shares = [range(first, len(tasks), len(self._compilers)) for first in range(len(self._compilers))]
        with ThreadPoolExecutor(len(self._compilers)) as crew:
            try:
                running = [crew.submit(serve, *pair) for pair in zip(self._compilers, shares, strict=True)]
                found = dict(pair for each in running for pair in each.result())
            except BaseException:  # an interrupted driver does not wait for its compilers
                stop.set()
                raise
        return [found[place] for place in range(len(tasks))]

    def gate(self, subject: Subject, bucket: Bucket, config: Config, seeds: Sequence[int], left_s: float) -> Outcome:
        """Judge in the device's process."""
        return self._run("gate_trial", subject, bucket, left_s, config=dict(config), seeds=list(seeds))

    def bench(
        self, subject: Subject, bucket: Bucket, config: Config, effort: Effort, slow_us: float | None, left_s: float
    ) -> Outcome:
        """Time in the device's process, alone on the device."""
        with self._alone():
            return self._run(
                "bench_trial",
                subject,
                bucket,
                left_s,
                config=dict(config),
                samples=effort.samples,
                seconds=effort.timing_s,
                slow_us=slow_us,
            )

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
        """Race in the device's process, alone on the device."""
        with self._alone():
            return self._run(
                "race",
                subject,
                bucket,
                left_s,
                configs=[dict(each) for each in configs],
                rounds=rounds,
                seconds=seconds,
                seeds=list(seeds),
            )

    def _compilation(self, wanted: Compilation) -> dict[str, Any]:
        """Return the arguments of the worker's task."""
        return {
            "subject": wanted.subject.to_json(),
            "buckets": [str(each) for each in wanted.buckets],
            "config": dict(wanted.config),
            "place": self._place,
        }

    def _run(self, task: str, subject: Subject, bucket: Bucket, left_s: float, **asked: Any) -> Outcome:
        limit = RACE_TIMEOUT_S[self._kind] if task == "race" else self._task_s
        given = {"subject": subject.to_json(), "bucket": str(bucket), "place": self._place, **asked}
        return self._worker.run(WORK + task, given, timeout_s=_within(limit, left_s))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with open(self._lock, "a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


def _within(limit_s: float, left_s: float) -> float:
    """A trial that begins inside the budget may end a moment behind it, but does not hang for its whole limit."""
    return max(1.0, min(limit_s, left_s))
