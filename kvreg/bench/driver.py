"""Running a bench: compile in parallel, measure one shape after the other, in processes that can be killed.

The kernels of a shape are measured together. Where that process crashes, hangs or is poisoned, each of them gets a
process of its own, so that the one to blame is a row and the others have their times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvreg.bench import results
from kvreg.bench.results import Compared, Results, Row
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import DEFAULT_MODES, Planned, Subject
from kvreg.core.modes import Mode
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

COMPILE_TIMEOUT_S = 300.0
"""FlashInfer builds its kernels with nvcc: 45 s each."""
MEASURE_TIMEOUT_S = 120.0
SMALL_READ_BYTES = 1 << 26
"""Read by the bandwidth measurement on the cpu device: beyond the caches of most hosts, and soon done."""

_MODULE = "kvreg.bench.measuring"
_TOGETHER = "bench"
"""Bundle of tasks that one process may do one after the other, with what it has compiled and loaded."""
_BANDWIDTH = {"bench": "read bandwidth"}
"""What a journal knows the read bandwidth by."""


class View(Protocol):
    """What a bench tells whoever watches."""

    def stage(self, name: str, total: int, done: int) -> None:
        """Say that a stage of `total` parts begins."""

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Say that a part is finished; `line` has status and error."""

    def note(self, text: str) -> None:
        """Say something else."""


class Journal(Protocol):
    """What is kept of shapes whose every row is there, so that a bench which was cut off goes on behind them."""

    def get(self, identity: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return what was kept."""

    def keep(self, identity: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
        """Keep what a process has found."""


class NoJournal:
    """Keeps nothing."""

    def get(self, identity: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return None."""
        return None

    def keep(self, identity: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A device of this machine and the processes that run on it."""

    device: str
    """Key of the device."""
    place: str
    """torch device: cpu, cuda:0, ..."""
    peer: str | None
    """Folder of vLLM's kernel files."""
    outcomes: Callable[[Sequence[Task], int], Iterator[tuple[int, Outcome]]]
    """(tasks, workers): runs them and yields (index, outcome); ends early at a deadline."""
    require_device: Callable[[Outcome], None]
    """Raises DeviceUnavailable when a failed task has left a device that gives no answer."""
    view: View
    journal: Journal = field(default_factory=NoJournal)

    def run(self, planned: Sequence[Planned], modes: Sequence[Mode] = DEFAULT_MODES) -> Results:
        """Measure every shape that is not in the journal; rows come in the order of `modes`."""
        jobs = [job for each in planned for job in _jobs(each)]
        known = [self.journal.get(self._identity(job)) for job in jobs]
        waiting = [job for job, found in zip(jobs, known, strict=True) if found is None]
        found_of = {id(job): found for job, found in zip(jobs, known, strict=True) if found is not None}
        if waiting:
            self._compile(waiting)
        results_ = Results()
        self.view.stage("bench", len(jobs), len(jobs) - len(waiting))
        for job, found in self._measured(waiting):
            if job is not None:
                found_of[id(job)] = found
            elif found:
                results_.bandwidth = float(found[0]["bytes_per_second"])
        for each in planned:
            mine = [job for job in jobs if job.shape == each.shape]
            rows = [row for job in mine for row in _rows(job, found_of.get(id(job)))]
            rows += [results.refused(each.shape, refusal) for refusal in each.refusals]
            results_.shapes.append(Compared(each.shape, results.ordered(rows, modes), results_.bandwidth))
        return results_

    def _compile(self, jobs: Sequence[_Job]) -> None:
        """Let every kernel compile in a process of its own; what fails here fails again, as a row, when measured."""
        if self.place == "cpu":
            return
        parts = [(job.shape, subject) for job in jobs for subject in job.subjects if subject.compiles]
        tasks = [
            Task(
                f"{_MODULE}:compile_subject",
                {"shape": shape.to_json(), "subject": subject.to_json(), **self._where()},
                COMPILE_TIMEOUT_S,
            )
            for shape, subject in parts
        ]
        self.view.stage("compile", len(tasks), 0)
        for index, outcome in self.outcomes(tasks, os.cpu_count() or 1):
            shape, subject = parts[index]
            self.view.advance(f"{shape.name}: {subject.name}", {"status": outcome.status, "error": outcome.error})
            self.require_device(outcome)

    def _bandwidth_task(self) -> Task:
        size = {"size": SMALL_READ_BYTES} if self.place == "cpu" else {}
        return Task(f"{_MODULE}:read_bandwidth", {"place": self.place, **size}, MEASURE_TIMEOUT_S, bundle=_TOGETHER)

    def _measured(self, jobs: Sequence[_Job]) -> Iterator[tuple[_Job | None, list[dict[str, Any]]]]:
        """Yield the bandwidth, under None, where it is not known, then what each job has found.

        A job whose process ended is done again, a subject at a time.
        """
        known = self.journal.get(_BANDWIDTH)
        if known is not None:
            yield None, known
        order: list[_Job | None] = [*([None] if known is None else []), *jobs]
        tasks = [self._bandwidth_task() if job is None else self._task(job, job.subjects) for job in order]
        for index, outcome in self.outcomes(tasks, 1):
            job = order[index]
            if outcome.status != "ok":
                self.require_device(outcome)
            if job is None:
                yield None, self._bandwidth(outcome)
                continue
            found = self._found(job, outcome)
            if len(found) == len(job.subjects):
                if all(each["status"] == "ok" for each in found):
                    self.journal.keep(self._identity(job), found)
                yield job, found
            self.view.advance(str(job), _line(found))

    def _bandwidth(self, outcome: Outcome) -> list[dict[str, Any]]:
        if outcome.status != "ok":
            self.view.note(f"read bandwidth: {outcome.status}: {outcome.error}; no row has a share of it")
            return []
        found = [{"bytes_per_second": outcome.value}]
        self.journal.keep(_BANDWIDTH, found)
        return found

    def _found(self, job: _Job, outcome: Outcome) -> list[dict[str, Any]]:
        if outcome.status == "ok":
            return list(outcome.value)
        if len(job.subjects) == 1:
            return [{"status": outcome.status, "detail": outcome.error}]
        self.view.note(f"{job.shape.name}: {outcome.status}: {outcome.error}; its kernels are taken one by one")
        return self._one_by_one(job)

    def _one_by_one(self, job: _Job) -> list[dict[str, Any]]:
        tasks = [self._task(job, (subject,)) for subject in job.subjects]
        found = []
        for _, outcome in self.outcomes(tasks, 1):
            if outcome.status == "ok":
                found += outcome.value
            else:
                found.append({"status": outcome.status, "detail": outcome.error})
                self.require_device(outcome)
        return found

    def _task(self, job: _Job, subjects: Sequence[Subject]) -> Task:
        return Task(
            f"{_MODULE}:measure",
            {"shape": job.shape.to_json(), "subjects": [each.to_json() for each in subjects], **self._where()},
            MEASURE_TIMEOUT_S,
            bundle=_TOGETHER,
        )

    def _where(self) -> dict[str, Any]:
        return {"device": self.device, "place": self.place, "peer": self.peer}

    def _identity(self, job: _Job) -> dict[str, Any]:
        subjects = [each.to_json() for each in job.subjects]
        return {"bench": job.shape.to_json(), "subjects": subjects, "peer": self.peer is not None}


@dataclass(frozen=True, slots=True)
class _Job:
    """Subjects of a shape that share a process."""

    shape: Shape
    subjects: tuple[Subject, ...]

    def __str__(self) -> str:
        return self.shape.name if len(self.subjects) > 1 else f"{self.shape.name}: {self.subjects[0].name}"


def _jobs(planned: Planned) -> Iterator[_Job]:
    together = tuple(each for each in planned.subjects if not each.is_alone)
    if together:
        yield _Job(planned.shape, together)
    yield from (_Job(planned.shape, (each,)) for each in planned.subjects if each.is_alone)


def _rows(job: _Job, found: Sequence[Mapping[str, Any]] | None) -> list[Row]:
    """Return the rows of a job; of one that was cut off, none."""
    if found is None:
        return []
    return [results.row_of(job.shape, subject, one) for subject, one in zip(job.subjects, found, strict=True)]


def _line(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a view shows of a job: the first thing that went wrong."""
    bad = next((each for each in found if each["status"] != "ok"), None)
    return {"status": "ok", "error": ""} if bad is None else {"status": bad["status"], "error": bad["detail"]}
