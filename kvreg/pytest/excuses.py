"""Applies expectations to collected tests: strict xfail, flaky, and skip, which never runs in this process.

Nothing is deselected: each excepted test is collected, reported, and carries its reason as properties that JUnit files
show. An entry past its date, or without a field that is required (a reason, an end), excuses nothing: its test runs
and gates again, and one that may not run fails.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

import pytest

from kvreg.core import notices
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.matching import EntryIndex
from kvreg.core.expectations.node_ids import file_of
from kvreg.core.expectations.predicates import Where
from kvreg.core.expectations.vocabulary import Expect
from kvreg.pytest import alone

EXCUSE = "kvreg"
"""Attribute of a test's report that says what was expected of it; xdist carries it, being plain values."""
GATES = "kvreg_gates"
"""Attribute of a test's report: whether its outcome could have been one that fails the run."""
_EXCUSE = pytest.StashKey["Excuse"]()


@dataclass(slots=True)
class Excuse:
    """What holds for one collected test."""

    number: int
    """Place of its entry in the list."""
    test: str
    """The test's id as it was collected: xdist may add a group's name to it."""
    entry: Expectation
    expired: bool
    void: bool
    """Whether it excuses nothing: it has expired, or lacks what an entry must have."""
    outcome: alone.Outcome | None = None
    """Of its run in a process of its own."""
    flaked: bool = False

    def to_report(self) -> dict[str, Any]:
        """Return plain values that travel with a test's report."""
        outcome = self.outcome
        ran = None
        if outcome is not None:
            ran = {"result": str(outcome.result), "seconds": outcome.seconds, "detail": outcome.detail}
        return {"entry": self.number, "expired": self.expired, "flaked": self.flaked, "alone": ran}


@dataclass(slots=True)
class Seen:
    """Which entries have met a test, and which of their files were collected whole."""

    entries: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    """Those that are not applied because the place leaves a word of theirs open."""
    files: set[str] = field(default_factory=set)

    def to_controller(self) -> dict[str, list[Any]]:
        """Return it as the plain values that xdist carries."""
        return {name: sorted(values) for name, values in asdict(self).items()}

    def add(self, answer: dict[str, list[Any]]) -> None:
        """Take what a worker has seen."""
        for name, values in answer.items():
            getattr(self, name).update(values)


class Excuses:
    """Plugin object; `alone_limit_s`: seconds for each test that is skipped here and run by itself, None not to."""

    def __init__(
        self, entries: Sequence[Expectation], where: Where, day: date, *, alone_limit_s: float | None
    ) -> None:
        self.seen = Seen()
        self._numbers = {id(entry): number for number, entry in enumerate(entries)}
        self._index = EntryIndex(entries)
        self._files = {file_of(entry.test) for entry in entries}
        self._where = where
        self._day = day
        self._alone_limit_s = alone_limit_s

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Look at every test before -k and -m leave some out, and mark those that are excepted here."""
        partial = any("::" in str(each) for each in config.args) or getattr(config.option, "lf", False)
        for item in items:
            matching = self._index.of(item.nodeid)
            self.seen.entries.update(self._numbers[id(entry)] for entry in matching)
            if not partial and (file := file_of(item.nodeid)) in self._files:
                self.seen.files.add(file)
            holding = [entry for entry in matching if entry.holds(self._where)]
            if holding:
                self._excuse(item, holding[0])
            else:
                open_here = (entry for entry in matching if entry.when.may_hold(self._where))
                self.seen.undecided.update(self._numbers[id(entry)] for entry in open_here)

    def _excuse(self, item: pytest.Item, entry: Expectation) -> None:
        expired = entry.expired(self._day)
        void = expired or bool(entry.lacking)
        excuse = Excuse(self._numbers[id(entry)], item.nodeid, entry, expired, void)
        item.stash[_EXCUSE] = excuse
        item.user_properties += properties(entry)
        if excuse.void:
            return
        if entry.expect is Expect.XFAIL:
            item.add_marker(pytest.mark.xfail(reason=told(entry), strict=True), append=False)
        elif entry.expect is Expect.SKIP and self._alone_limit_s is None:
            item.add_marker(pytest.mark.skip(reason=told(entry)), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Keep a test that may not run from running here, by another process where that was asked for."""
        excuse = item.stash.get(_EXCUSE, None)
        if excuse is None or excuse.entry.expect is not Expect.SKIP:
            return
        if excuse.void:
            pytest.fail(f"{why_void(excuse.entry, self._day)}: {told(excuse.entry)}", pytrace=False)
        if self._alone_limit_s is not None:
            excuse.outcome = alone.run(excuse.test, root=item.config.rootpath, limit_s=self._alone_limit_s)
            ended = f"{excuse.outcome.result} {excuse.outcome.detail}".strip()
            raise pytest.skip.Exception(f"{told(excuse.entry)}; alone: {ended}", _use_item_location=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn a flaky test's failure into a report that does not gate, and tell the record what holds."""
        report = yield
        excuse = item.stash.get(_EXCUSE, None)
        flaky = excuse is not None and excuse.entry.expect is Expect.FLAKY and not excuse.void
        if excuse is not None:
            if flaky and report.failed:
                excuse.flaked = True
                report.outcome = "skipped"
                report.wasxfail = told(excuse.entry)
            setattr(report, EXCUSE, excuse.to_report())
        lenient = hasattr(report, "wasxfail") and not _is_strict(item)
        setattr(report, GATES, not (flaky or lenient))
        return report


def _is_strict(item: pytest.Item) -> bool:
    """Return whether a pass of a test that is marked xfail, by its source or by an expectation, is a failure."""
    default = item.config.getini("xfail_strict")
    return any(mark.kwargs.get("strict", default) for mark in item.iter_markers("xfail"))


def why_void(entry: Expectation, day: date) -> str:
    """Return why an entry excuses nothing on a day; empty where it does excuse."""
    if entry.lacking:
        return f"lacks {', '.join(entry.lacking)}"
    return f"expired on {entry.review_by}" if entry.expired(day) else ""


def told(entry: Expectation) -> str:
    """Return an entry in one line: what is expected and why, where that is discussed, and until when."""
    kind = f" ({entry.kind})" if entry.kind is not None else ""
    until = f"review by {entry.review_by}" if entry.review_by is not None else "no end"
    where = f"{entry.issue}, {until}" if entry.issue else until
    return notices.one_line(f"{entry.expect}{kind}: {entry.reason or 'no reason given'} ({where})")


def properties(entry: Expectation) -> list[tuple[str, object]]:
    """Return an entry as the properties of a JUnit test case."""
    fields = {
        "expect": entry.expect,
        "kind": entry.kind,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "review_by": entry.review_by,
        "entry": entry.id,
    }
    return [(f"kvreg_{name}", str(value)) for name, value in fields.items() if value]
