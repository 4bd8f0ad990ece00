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

Found = list[dict[str, Any]]
"""Rows as `measuring.measure` gives them, one a subject."""

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
        self._compile(waiting)
        self.view.stage("bench", len(jobs), len(jobs) - len(waiting))
        bandwidth, measured = self._measure(waiting)
        found_of = {id(job): found for job, found in zip(jobs, known, strict=True) if found is not None} | measured
        shapes = []
        for each in planned:
            mine = [job for job in jobs if job.shape == each.shape]
            rows = [row for job in mine for row in _rows(job, found_of.get(id(job)))]
            rows += [results.refused(each.shape, refusal) for refusal in each.refusals]
            shapes.append(Compared(each.shape, results.ordered(rows, modes), bandwidth))
        return Results(bandwidth, shapes)

    def compile(self, named: Sequence[tuple[str, Task]]) -> None:
        """Run each task, which compiles something, beside the others; their processes have ended when this returns.

        On the cpu device nothing is compiled. What fails here fails again, as a row, when it is measured.
        """
        if self.place == "cpu" or not named:
            return
        self.view.stage("compile", len(named), 0)
        for index, outcome in self.outcomes([task for _, task in named], os.cpu_count() or 1):
            self.view.advance(named[index][0], {"status": outcome.status, "error": outcome.error})
            self.require_device(outcome)

    def _compile(self, jobs: Sequence[_Job]) -> None:
        """Let every kernel compile in a process of its own."""
        parts = [(job.shape, subject) for job in jobs for subject in job.subjects if subject.compiles]
        self.compile(
            [(f"{shape.name}: {subject.name}", self.compile_task(shape, subject)) for shape, subject in parts]
        )

    def compile_task(self, shape: Shape, subject: Subject) -> Task:
        """Return what compiles whatever a subject launches at a shape."""
        return Task(
            f"{_MODULE}:compile_subject",
            {"shape": shape.to_json(), "subject": subject.to_json(), **self.where()},
            COMPILE_TIMEOUT_S,
        )

    def _measure(self, jobs: Sequence[_Job]) -> tuple[float | None, dict[int, Found]]:
        """Return the read bandwidth and, by their id, what was found of the jobs that the time was enough for.

        A job whose process ended is done again when the device is idle, a subject at a time.
        """
        kept = self.journal.get(_BANDWIDTH)
        bandwidth = None if kept is None else float(kept[0]["bytes_per_second"])
        first = [] if kept is not None else [self._bandwidth_task()]
        measured: dict[int, Found] = {}
        again: list[_Job] = []
        for index, outcome in self.outcomes([*first, *(self._task(job, job.subjects) for job in jobs)], 1):
            if outcome.status != "ok":
                self.require_device(outcome)
            if index < len(first):
                bandwidth = self._bandwidth(outcome)
                continue
            job = jobs[index - len(first)]
            if outcome.status == "ok" or len(job.subjects) == 1:
                measured[id(job)] = self._finished(job, _found(outcome))
            else:
                self.view.note(f"{job}: {outcome.status}: {outcome.error}; its kernels are taken one by one")
                again.append(job)
        return bandwidth, measured | self._one_by_one(again)

    def _one_by_one(self, jobs: Sequence[_Job]) -> dict[int, Found]:
        parts = [(job, subject) for job in jobs for subject in job.subjects]
        partly: dict[int, Found] = {}
        for index, outcome in self.outcomes([self._task(job, (subject,)) for job, subject in parts], 1):
            if outcome.status != "ok":
                self.require_device(outcome)
            partly.setdefault(id(parts[index][0]), []).extend(_found(outcome))
        whole = {id(job): partly.get(id(job), []) for job in jobs}
        return {
            id(job): self._finished(job, whole[id(job)]) for job in jobs if len(whole[id(job)]) == len(job.subjects)
        }

    def _finished(self, job: _Job, found: Found) -> Found:
        """Keep what a job has found, unless something failed, which may be tried again; show it."""
        if all(each["status"] == "ok" for each in found):
            self.journal.keep(self._identity(job), found)
        self.view.advance(str(job), _line(found))
        return found

    def _bandwidth_task(self) -> Task:
        size = {"size": SMALL_READ_BYTES} if self.place == "cpu" else {}
        return Task(f"{_MODULE}:read_bandwidth", {"place": self.place, **size}, MEASURE_TIMEOUT_S, bundle=_TOGETHER)

    def _bandwidth(self, outcome: Outcome) -> float | None:
        if outcome.status != "ok":
            self.view.note(f"read bandwidth: {outcome.status}: {outcome.error}; no row has a share of it")
            return None
        self.journal.keep(_BANDWIDTH, [{"bytes_per_second": outcome.value}])
        return float(outcome.value)

    def _task(self, job: _Job, subjects: Sequence[Subject]) -> Task:
        return Task(
            f"{_MODULE}:measure",
            {"shape": job.shape.to_json(), "subjects": [each.to_json() for each in subjects], **self.where()},
            MEASURE_TIMEOUT_S,
            bundle=_TOGETHER,
        )

    def where(self) -> dict[str, Any]:
        """Return the arguments that say for which device a task is, and with whose kernels beside."""
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


def _found(outcome: Outcome) -> Found:
    """Return the rows of a task; of one that ended otherwise, one that says how."""
    return list(outcome.value) if outcome.status == "ok" else [{"status": outcome.status, "detail": outcome.error}]


def _rows(job: _Job, found: Found | None) -> list[Row]:
    """Return the rows of a job; of one that was cut off, none."""
    if found is None:
        return []
    return [results.row_of(job.shape, subject, one) for subject, one in zip(job.subjects, found, strict=True)]


def _line(found: Found) -> dict[str, Any]:
    """Return what a view shows of a job: the first thing that went wrong."""
    bad = next((each for each in found if each["status"] != "ok"), None)
    return {"status": "ok", "error": ""} if bad is None else {"status": bad["status"], "error": bad["detail"]}
