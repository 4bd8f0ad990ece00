"""Running the bench of a step: kernels compiled in parallel, all steps timed in one process that can be killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvreg.bench.driver import COMPILE_TIMEOUT_S, Driver
from kvreg.bench.step import results
from kvreg.bench.step.results import StepResults, StepRow
from kvreg.bench.step.shapes import StepShape
from kvreg.bench.subjects import Planned, Subject
from kvreg.core.modes import Mode
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

MEASURE_TIMEOUT_S = 240.0
"""A few seconds for each kind of cache, most of them for laying its rows down."""

_MODULE = "kvreg.bench.step.measuring"


def run(driver: Driver, shape: StepShape, planned: Planned, modes: Sequence[Mode]) -> StepResults:
    """Time the step with each subject's attention.

    Where the process that holds all of them ends, or has no room for so many caches, each gets one of its own: its
    row then says that it was timed alone.
    """
    subjects = planned.subjects
    compiled = [each for each in subjects if each.compiles]
    driver.compile([(each.name, _task(driver, shape, "compile_subject", subject=each.to_json())) for each in compiled])
    driver.view.stage("step", len(subjects), 0)
    rows = _together(driver, shape, subjects)
    rows += [results.refused(refusal) for refusal in planned.refusals]
    return StepResults(shape, results.ordered(rows, modes))


def _together(driver: Driver, shape: StepShape, subjects: Sequence[Subject]) -> list[StepRow]:
    """Return a row for each subject; none where the time was not enough."""
    for _, outcome in driver.outcomes([_measure_task(driver, shape, subjects)], 1):
        if outcome.status == "ok":
            return [_row(driver, one, found) for one, found in zip(subjects, outcome.value, strict=True)]
        driver.require_device(outcome)
        if len(subjects) == 1:
            return [_row(driver, subjects[0], _failed(outcome))]
        driver.view.note(f"{shape}: {outcome.status}: {outcome.error}; the kinds of cache are taken one by one")
        return _one_by_one(driver, shape, subjects)
    return []


def _one_by_one(driver: Driver, shape: StepShape, subjects: Sequence[Subject]) -> list[StepRow]:
    rows = []
    tasks = [_measure_task(driver, shape, [subject]) for subject in subjects]
    for index, outcome in driver.outcomes(tasks, 1):
        if outcome.status != "ok":
            driver.require_device(outcome)
        found = outcome.value[0] if outcome.status == "ok" else _failed(outcome)
        rows.append(_row(driver, subjects[index], found, alone=True))
    return rows


def _row(driver: Driver, subject: Subject, found: Mapping[str, Any], *, alone: bool = False) -> StepRow:
    row = results.row_of(subject, found, alone=alone)
    driver.view.advance(row.kernel, {"status": row.status, "error": row.detail})
    return row


def _failed(outcome: Outcome) -> dict[str, Any]:
    return {"status": outcome.status, "detail": outcome.error}


def _measure_task(driver: Driver, shape: StepShape, subjects: Sequence[Subject]) -> Task:
    return _task(driver, shape, "measure", subjects=[each.to_json() for each in subjects])


def _task(driver: Driver, shape: StepShape, function: str, **arguments: Any) -> Task:
    where = {"device": driver.device, "place": driver.place}
    timeout = MEASURE_TIMEOUT_S if function == "measure" else COMPILE_TIMEOUT_S
    return Task(f"{_MODULE}:{function}", {"shape": shape.to_json(), **arguments, **where}, timeout)
