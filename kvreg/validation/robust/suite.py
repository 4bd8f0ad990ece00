"""The checks by name, as tasks for workers, and what becomes of their outcomes.

Those of one line-up run in one process, which compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.core.errors import UsageError, wrong
from kvreg.validation import fuzz
from kvreg.validation.robust import hazards, tuning
from kvreg.validation.robust.findings import Finding, judged
from kvreg.validation.robust.lineups import line_ups
from kvreg.validation.unproven import Place
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

OF_LINE_UPS = {
    "caches": "kvreg.validation.robust.far:caches",
    "rows": "kvreg.validation.robust.far:rows",
    "graphs": "kvreg.validation.robust.graphs:replays",
    "streams": "kvreg.validation.robust.streams:side_by_side",
    "inputs": "kvreg.validation.robust.inputs:odd",
}
"""Checks that are made for every decode variant of every mode."""
CALLS = {"calls": "kvreg.validation.robust.wrong_calls:every_row"}


@dataclass(frozen=True, slots=True)
class OwnWorkers:
    """A check that starts workers of its own."""

    run: Callable[[Place], Finding]
    needs_s: float
    """It begins only where so many seconds are left."""


OWN_WORKERS = {
    "hazards": OwnWorkers(hazards.survived, hazards.NEEDS_S),
    "tuning": OwnWorkers(tuning.survived, tuning.NEEDS_S),
}
"""Checks that want the device for themselves: each leaves processes behind that were killed."""
FUZZ = "fuzz"
NAMES = (*OF_LINE_UPS, *CALLS, *OWN_WORKERS, FUZZ)

TIMEOUT_S = 240.0
"""One check compiles up to a dozen kernels beside as many other processes."""


def require_names(names: Sequence[str]) -> None:
    """Raise UsageError for a name that is no check's."""
    for name in names:
        if name not in NAMES:
            raise UsageError(
                wrong("check", required=" or ".join(NAMES), found=repr(name), remedy="take some of these")
            )


def tasks(place: Place, names: Sequence[str] = NAMES) -> list[Task]:
    """Return the tasks of the named checks at a place, those of a line-up bundled."""
    found = [
        _task(function, {"place": place.name, "mode": mode, "decode": decode}, bundle=decode)
        for mode, decode in line_ups(place)
        for name, function in OF_LINE_UPS.items()
        if name in names
    ]
    return found + [_task(function, {"place": place.name}) for name, function in CALLS.items() if name in names]


def title(task: Task) -> str:
    """Return what a report calls a task's check: `graphs cuda-int4-decode@1`."""
    name = next(name for name, function in (OF_LINE_UPS | CALLS).items() if function == task.function)
    return " ".join([name, *filter(None, [task.arguments.get("decode")])])


def _task(function: str, arguments: dict[str, Any], bundle: str = "") -> Task:
    return Task(function, arguments, TIMEOUT_S, bundle)


def found(outcome: Outcome) -> Finding:
    """Return the finding of a task; one that gave none has failed."""
    if outcome.status != "ok":
        return judged("no answer", [f"{outcome.status}: required an answer, found {outcome.error}"])
    return Finding.of_json(outcome.value)


def fuzzed(place: Place, seconds: float, workers: int, say: Callable[[str], None]) -> tuple[Finding, fuzz.Tally]:
    """Judge random calls for so many seconds; says each failure as it is found."""
    tally = fuzz.run(device=place.name, minutes=seconds / 60, workers=workers, say=say)
    failures = [f"{tally.failures} cases failed"] if tally.failures else []
    return judged(tally.summary(), failures), tally
