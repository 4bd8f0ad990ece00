"""The audit of comparisons: `--kvreg-audit` fails a test whose comparison would also pass for a wrong result.

Every comparison of `comparisons.KNOWN` that a test makes and that passes is judged by `soundness`. What fails the test
is an outcome of pytest and no AssertionError, so that no `pytest.raises(AssertionError)` takes it for the failure that
it waits for; a finding that was caught all the same fails the test's report.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kvreg.pytest.comparisons import KNOWN, Comparison, Pair, pairs
from kvreg.pytest.soundness import LEAST_CORRELATION, UNREADABLE, Judgement, judge
from kvreg.pytest.tally import TALLY
from kvreg.pytest.watched import Watch

MARKER = "kvreg_unaudited"
"""`@pytest.mark.kvreg_unaudited(reason="...")`: the comparisons of a test that are meant to be loose."""
MARKED = f"marked {MARKER}"


class Audit:
    """Plugin object: judges what the running test compares."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._item: pytest.Item | None = None
        self._judged = 0
        self._exempt: Counter[str] = Counter()
        self._findings: list[dict[str, Any]] = []
        self._busy = False
        self._known = {(each.module, each.name): each for each in KNOWN}
        targets: dict[str, tuple[str, ...]] = {}
        for each in KNOWN:
            targets[each.module] = (*targets.get(each.module, ()), each.name)
        self._watch = Watch(targets, self._wrapped)
        self._watch.install()

    def pytest_unconfigure(self) -> None:
        """Put the functions back."""
        self._watch.remove()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember which test runs."""
        self._item = item
        try:
            return (yield)
        finally:
            self._item = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hand over what this phase of the test has compared, with the report that every process sends."""
        report = yield
        if self._judged or self._exempt:
            tally = {"judged": self._judged, "exempt": dict(self._exempt), "findings": self._findings}
            setattr(report, TALLY, tally)
            if self._findings and report.passed:
                report.outcome = "failed"
                report.longrepr = "\n".join(each["message"] for each in self._findings)
        self._judged, self._exempt, self._findings = 0, Counter(), []
        return report

    def _wrapped(self, module: str, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        comparison = self._known[module, name]

        @functools.wraps(original)
        def compared(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            outermost, self._busy = not self._busy, True
            try:
                result = original(*arguments, **named)
            finally:
                self._busy = not outermost
            if outermost and self._item is not None:
                self._judge(comparison, arguments, named, result, sys._getframe(1))
            return result

        return compared

    def _judge(
        self, comparison: Comparison, arguments: tuple[Any, ...], named: dict[str, Any], result: Any, caller: FrameType
    ) -> None:
        """Judge one comparison that passed; fails the test where it proves nothing."""
        __tracebackhide__ = True
        assert self._item is not None
        if comparison.is_question and (result is not True or caller.f_code.co_filename != str(self._item.path)):
            return
        if (mark := self._item.get_closest_marker(MARKER)) is not None:
            if not mark.kwargs.get("reason"):
                pytest.fail(f"{MARKER}: required a reason, found none; write {MARKER}(reason=...)", pytrace=False)
            self._exempt[f"{MARKED}: {mark.kwargs['reason']}"] += 1
            return
        for pair in pairs(comparison, arguments, named):
            if pair is None:
                self._exempt[UNREADABLE] += 1
                continue
            judgement = judge(pair.actual, pair.expected, pair.rtol, pair.atol, eps=pair.eps)
            if judgement.exempt is not None:
                self._exempt[judgement.exempt] += 1
                continue
            self._judged += 1
            if not judgement.sound:
                finding = _finding(comparison, pair, judgement, f"{self._place(caller)}:{caller.f_lineno}")
                self._findings.append(finding)
                pytest.fail(finding["message"])

    def _place(self, caller: FrameType) -> str:
        file = Path(caller.f_code.co_filename)
        return str(file.relative_to(self._root)) if file.is_relative_to(self._root) else str(file)


def _finding(comparison: Comparison, pair: Pair, judgement: Judgement, where: str) -> dict[str, Any]:
    """Return a finding as plain values, which xdist and JSON carry."""
    faults = []
    if judgement.passes:
        faults.append(f"{' and '.join(judgement.passes)} would pass")
    if judgement.uncorrelated:
        faults.append(f"what passed correlates by {judgement.correlation:.3f} with what is due")
    message = (
        f"{where}: {comparison} proves nothing: {'; '.join(faults)}; required a tolerance that they fail and a "
        f"correlation of at least {LEAST_CORRELATION}, found atol={pair.atol:.3g}, rtol={pair.rtol:.3g} for values "
        f"with a deviation of {judgement.spread:.3g}; the widest sound tolerance is atol={judgement.widest:g}, rtol=0"
    )
    return {
        "where": where,
        "function": str(comparison),
        "passes": list(judgement.passes),
        "correlation": judgement.correlation,
        "rtol": pair.rtol,
        "atol": pair.atol,
        "widest_atol": judgement.widest,
        "deviation": judgement.spread,
        "shape": [int(size) for size in pair.expected.shape],
        "message": message,
    }
