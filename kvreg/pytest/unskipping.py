"""Whether excepted tests still need their exception: each alone, several times, on the machine that is asked about.

An entry may go when every test that it takes passed every time, and when it holds for no other device: what one card
shows says nothing about the others that the entry speaks of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.predicates import Where, covers
from kvreg.pytest import alone
from kvreg.pytest.alone import Outcome, Result


class Verdict(StrEnum):
    """What several runs of one test say, the worst of them first."""

    CRASH = "crash"
    HANG = "hang"
    FAILING = "still failing"
    NOT_FOUND = "not found"
    NOT_RUN = "not run"
    FIXED = "fixed"


_OF_RUN = {
    Result.CRASH: Verdict.CRASH,
    Result.HANG: Verdict.HANG,
    Result.FAILED: Verdict.FAILING,
    Result.MISSING: Verdict.NOT_FOUND,
    Result.SKIPPED: Verdict.NOT_RUN,
    Result.PASSED: Verdict.FIXED,
}


def word(outcome: Outcome) -> Verdict:
    """Return what one run says."""
    return _OF_RUN[outcome.result]


@dataclass(frozen=True, slots=True)
class Tried:
    """One test and its runs."""

    test: str
    outcomes: tuple[Outcome, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst run's."""
        return min((word(each) for each in self.outcomes), key=list(Verdict).index)

    @property
    def detail(self) -> str:
        """What the worst run says of itself."""
        return next(each.detail for each in self.outcomes if word(each) is self.verdict)

    @property
    def counts(self) -> Counter[str]:
        """Runs by what they say."""
        return Counter(str(word(each)) for each in self.outcomes)


@dataclass(frozen=True, slots=True)
class Case:
    """One entry with its tests."""

    entry: Expectation
    tests: tuple[Tried, ...]
    elsewhere: tuple[str, ...]
    """Other devices that the entry holds for."""

    @property
    def fixed(self) -> bool:
        """Whether every test passed every time."""
        return bool(self.tests) and all(each.verdict is Verdict.FIXED for each in self.tests)

    @property
    def may_go(self) -> bool:
        """Whether the entry may be removed on this evidence."""
        return self.fixed and not self.elsewhere


@dataclass(frozen=True, slots=True)
class Trial:
    """How tests are run: `root` is the folder that their ids count from, `arguments` are pytest's."""

    root: Path
    runs: int
    limit_s: float
    arguments: tuple[str, ...] = ()

    def of(self, test: str) -> Tried:
        """Run one test; an id that is not found is not looked for again."""
        outcomes: list[Outcome] = []
        while len(outcomes) < self.runs:
            outcomes.append(alone.run(test, root=self.root, limit_s=self.limit_s, arguments=self.arguments))
            if outcomes[-1].result is Result.MISSING:
                break
        return Tried(test, tuple(outcomes))

    def ids(self, entries: Iterable[Expectation], collected: IdIndex | None) -> dict[int, list[str]]:
        """Return line -> the ids that each entry takes, from `collected` or by collecting the files of globs."""
        wanted = list(entries)
        if collected is None:
            files = sorted({each.pattern.base.partition("::")[0] for each in wanted if each.pattern.is_glob})
            found = alone.collect([*self.arguments, *files], root=self.root, limit_s=self.limit_s) if files else ()
            collected = IdIndex(found)
        exact = {each.line: [each.pattern.base + each.pattern.literal] for each in wanted if not each.pattern.is_glob}
        return {each.line: exact.get(each.line) or collected.hits(each.pattern) for each in wanted}


def elsewhere(entry: Expectation, here: Where, known: Known) -> tuple[str, ...]:
    """Return the devices, but for this one and its slices, for which an entry can hold."""
    return tuple(
        device.key
        for device in known.devices
        if not device.is_arch
        and not (here.device is not None and covers(here.device, device.key))
        and known.may_hold(entry.when, known.place(device))
    )


def cases(
    entries: Sequence[Expectation],
    here: Where,
    known: Known,
    trial: Trial,
    collected: IdIndex | None,
    tell: Callable[[str], None],
) -> list[Case]:
    """Run the tests of the entries that hold here; `tell` gets a line before each test."""
    holding = [entry for entry in entries if entry.holds(here)]
    ids = trial.ids(holding, collected)
    found: list[Case] = []
    for entry in holding:
        tried: list[Tried] = []
        for test in ids[entry.line]:
            tell(f"{test}, {trial.runs} times")
            tried.append(trial.of(test))
        found.append(Case(entry, tuple(tried), elsewhere(entry, here, known)))
    return found
