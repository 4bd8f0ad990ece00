"""What a run has shown: the outcome of every test, the terminal's summary, the JSON report, and the verdict.

A run is green only if a test was executed that could have turned it red: one that passed or failed, or a strict xfail.
Skipped and flaky tests and an xfail that may pass cannot. Where none was, the run ends with NOTHING_EXECUTED. Where
an entry of the list lacks what is required (a reason, an end), every run ends with INCOMPLETE_LIST.

All of it happens in the process that the user started; reports come from there or from workers alike.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvreg.core import installed, notices
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.files import Survey
from kvreg.core.expectations.node_ids import file_of
from kvreg.core.expectations.predicates import Where
from kvreg.core.shards import replace_file
from kvreg.pytest.excuses import EXCUSE, GATES, Seen, told, why_void
from kvreg.pytest.tally import TALLY, Tally

NOTHING_EXECUTED = int(pytest.ExitCode.TESTS_FAILED)
"""Not 5 (no test collected), which scripts often take for success, nor a number of our own, which they do not know."""

INCOMPLETE_LIST = int(pytest.ExitCode.TESTS_FAILED)
"""As for an entry past its date whose test fails again: the tests did run, so it is no error of usage."""

SCHEMA = 1
_WORST = ("passed", "xpassed", "skipped", "xfailed", "flaky", "error", "failed")
"""Outcomes of a test's phases; the last of this order is the test's."""
_VERSIONS = ("kvreg", "pytest", "pytest-xdist", "torch", "triton", "numpy")


@dataclass(slots=True)
class Test:
    """One test of this run."""

    __test__ = False

    id: str
    outcome: str = "passed"
    seconds: float = 0.0
    message: str = ""
    executed: bool = False
    """Whether it ran and could have turned the run red."""
    excuse: dict[str, Any] | None = None


class Record:
    """Plugin object of the process that the user started."""

    def __init__(
        self,
        config: pytest.Config,
        survey: Survey | None,
        where: Where,
        day: date,
        seen: Seen,
        report: Path | None,
    ) -> None:
        self.seen = seen
        self._config = config
        self._entries = survey.entries if survey is not None else ()
        # A run that only collects applies nothing, and its output is often kept as a list of ids.
        self._faults = survey.faults if survey is not None and not config.option.collectonly else ()
        self._where = where
        self._day = day
        self._report = report
        self._tests: dict[str, Test] = {}
        self._audit = Tally()
        self._collected: list[str] = []
        self._exit_code = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the ids of a run that only collects."""
        if self._config.option.collectonly:
            self._collected = [item.nodeid for item in session.items]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of one test."""
        test = self._tests.setdefault(report.nodeid, Test(report.nodeid))
        excuse = getattr(report, EXCUSE, None)
        outcome = _outcome(report, excuse)
        if _WORST.index(outcome) > _WORST.index(test.outcome):
            test.outcome, test.message = outcome, _message(report)
        test.seconds += report.duration
        test.excuse = excuse or test.excuse
        test.executed |= report.when == "call" and outcome != "skipped" and getattr(report, GATES, True)
        part = getattr(report, TALLY, None)
        if part is not None:
            self._audit.add(report.nodeid, part)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Name a flaky test's failure as such."""
        excuse = getattr(report, EXCUSE, None)
        if excuse is not None and excuse["flaked"] and hasattr(report, "wasxfail"):
            return "flaky", "f", "FLAKY"
        return None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn a run red that has executed nothing or whose list lacks something, and write the report."""
        if exitstatus == pytest.ExitCode.OK and self._nothing_executed:
            session.exitstatus = exitstatus = NOTHING_EXECUTED
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and self._faults:
            session.exitstatus = exitstatus = INCOMPLETE_LIST
        self._exit_code = int(exitstatus)
        if (path := self._report) is not None:
            try:
                replace_file(path, json.dumps(self._document(), indent=1).encode() + b"\n")
            except OSError as error:
                pytest.exit(f"--kvreg-report: required a file that can be written, found {path} ({error.strerror})", 4)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was excepted and why, what the audit found, and what the verdict rests on."""
        lines = [
            *self._entry_lines(),
            *self._fault_lines(),
            *self._undecided_lines(),
            *self._unmatched_lines(),
            *self._audit_lines(),
        ]
        if lines:
            terminalreporter.section(f"kvreg: {_place(self._where)}, as of {self._day}")
            for line in lines:
                terminalreporter.line(notices.printable(line))
        if self._nothing_executed:
            terminalreporter.line(
                f"kvreg: nothing was executed that could fail ({_counted(self._outcomes())}): "
                f"a run that proves nothing ends with {NOTHING_EXECUTED}",
                red=True,
            )
        if self._faults:
            terminalreporter.line(
                f"kvreg: entries that lack what is required excuse nothing; such a run ends with {INCOMPLETE_LIST}",
                red=True,
            )

    @property
    def _nothing_executed(self) -> bool:
        return bool(self._tests) and not any(test.executed for test in self._tests.values())

    def _outcomes(self) -> Counter[str]:
        return Counter(test.outcome for test in self._tests.values())

    def _by_entry(self) -> Iterator[tuple[Expectation, list[Test]]]:
        """Yield each entry that holds for tests of this run, with them."""
        found: dict[int, list[Test]] = {}
        for test in self._tests.values():
            if test.excuse is not None:
                found.setdefault(test.excuse["entry"], []).append(test)
        for number in sorted(found):
            yield self._entries[number], found[number]

    def _entry_lines(self) -> Iterator[str]:
        for entry, tests in self._by_entry():
            void = why_void(entry, self._day)
            excuses_nothing = f"{void}, excuses nothing; " if void else ""
            counts = _counted(Counter(test.outcome for test in tests))
            yield notices.one_line(f"{entry.test}: {counts}: {excuses_nothing}{told(entry)}")
            for test in tests:
                ran = test.excuse["alone"] if test.excuse is not None else None
                if ran is not None:
                    yield f"  {test.id}, alone: {ran['result']} after {ran['seconds']:.1f} s {ran['detail']}"

    def _fault_lines(self) -> Iterator[str]:
        for fault in self._faults:
            place = f"{self._entries[0].file}:{fault.line}"
            yield notices.one_line(f"finding: {place}: {fault.code}: {fault.test}: {fault.text}")

    def _undecided_lines(self) -> Iterator[str]:
        for number in sorted(self.seen.undecided):
            entry = self._entries[number]
            unknown = ", ".join(entry.when.open_words(self._where))
            yield f"warning: {entry.place}: {entry.test} is not applied: {unknown} unknown here, required {entry.when}"

    def _unmatched(self) -> list[Expectation]:
        """Return the entries that meet no test though their file was collected whole, or is gone."""
        root = self._config.rootpath
        return [
            entry
            for number, entry in enumerate(self._entries)
            if number not in self.seen.entries
            and (file_of(entry.test) in self.seen.files or not (root / file_of(entry.test)).exists())
        ]

    def _unmatched_lines(self) -> Iterator[str]:
        for entry in self._unmatched():
            yield f"warning: {entry.place}: {entry.test} matches no test"
        if self._unmatched():
            yield f"`kvreg deselections check --file {self._entries[0].file}` names the nearest id of each"

    def _audit_lines(self) -> Iterator[str]:
        tally = self._audit
        if self._config.option.kvreg_audit:
            exempt = f", {tally.exempt.total()} exempt ({_counted(tally.exempt)})" if tally.exempt else ""
            yield f"audit: {tally.judged} comparisons judged{exempt}; {len(tally.findings)} prove nothing"
        for finding in tally.findings:
            yield f"  {finding['test']}: {finding['message']}"

    def _document(self) -> dict[str, Any]:
        """Return the report."""
        return {
            "schema": SCHEMA,
            "environment": {
                **asdict(self._where),
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
                "versions": installed.versions(_VERSIONS),
            },
            "as_of": self._day.isoformat(),
            "expectations": str(self._entries[0].file) if self._entries else None,
            "exit_code": self._exit_code,
            "executed": sum(test.executed for test in self._tests.values()),
            "outcomes": dict(sorted(self._outcomes().items())),
            "tests": [self._of_test(test) for test in self._tests.values()],
            "findings": [
                {"code": each.code, "test": each.test, "line": each.line, "text": each.text} for each in self._faults
            ],
            "unmatched": [_entry(entry) for entry in self._unmatched()],
            "undecided": [_entry(self._entries[number]) for number in sorted(self.seen.undecided)],
            "audit": self._audit.to_json() if self._config.option.kvreg_audit else None,
            "collected": self._collected,
        }

    def _of_test(self, test: Test) -> dict[str, Any]:
        told_of = {
            "id": test.id,
            "outcome": test.outcome,
            "seconds": round(test.seconds, 4),
            "message": test.message,
            "executed": test.executed,
        }
        if test.excuse is None:
            return told_of
        entry = self._entries[test.excuse["entry"]]
        return {
            **told_of,
            "expectation": {
                "id": entry.id,
                "line": entry.line,
                "expect": entry.expect,
                "kind": entry.kind,
                "reason": entry.reason,
                "issue": entry.issue,
                "owner": entry.owner,
                "review_by": entry.review_by.isoformat() if entry.review_by else None,
                "expired": test.excuse["expired"],
                "lacking": list(entry.lacking),
                "alone": test.excuse["alone"],
            },
        }


def _entry(entry: Expectation) -> dict[str, Any]:
    return {"id": entry.id, "test": entry.test, "line": entry.line}


def _outcome(report: pytest.TestReport, excuse: dict[str, Any] | None) -> str:
    """Return the word of one phase."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        flaked = excuse is not None and excuse["flaked"]
        return ("flaky" if flaked else "xfailed") if expected else "skipped"
    return "xpassed" if expected else "passed"


def _message(report: pytest.TestReport) -> str:
    """Return the line that says why a test did not pass."""
    told_by = report.longrepr
    if isinstance(told_by, tuple):
        text = told_by[2]
    else:
        crash = getattr(told_by, "reprcrash", None)
        text = crash.message if crash is not None else str(told_by or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # numpy's message starts on the line after its type.
    return " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))


def _place(where: Where) -> str:
    parts = [part for part in (where.platform, where.arch) if part]
    return f"{where.device or 'an unnamed device'} ({', '.join(parts)})"
