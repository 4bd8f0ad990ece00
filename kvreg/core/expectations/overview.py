"""A list of expectations in figures: by platform and device, by issue, and by variants that lose their evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.predicates import Where
from kvreg.core.expectations.vocabulary import Expect

SOON = timedelta(days=30)
"""How far ahead an entry counts as due."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Entries that can hold at one place."""

    platform: str
    device: str | None
    """None counts the whole platform."""
    entries: int
    by_word: dict[str, int]
    """xfail, flaky and the kinds of skips -> entries."""
    oldest: date | None
    expired: int
    due: int
    invalidated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfIssue:
    """Entries that name one issue; an empty one stands for those that name none."""

    issue: str
    entries: int
    oldest: date | None
    next_review: date | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it."""

    places: tuple[Tally, ...]
    issues: tuple[OfIssue, ...]
    invalidated: tuple[tuple[str, Expectation], ...]
    """(variant, entry) for each variant that is not validated where an entry holds."""


def overview(entries: Sequence[Expectation], known: Known, as_of: date) -> Overview:
    """Return the figures of these entries: a row for each platform that has some, then for each device they name."""
    places: list[Tally] = []
    for platform in known.names["platform"]:
        place = Where(platform=platform)
        there = held(entries, known, place)
        if not there:
            continue
        places.append(_tally(there, platform, None, as_of))
        for device in _named_devices(there, known, platform):
            at_device = held(entries, known, _of_device(platform, device))
            places.append(_tally(at_device, platform, device, as_of))
    invalidated = tuple((variant, entry) for entry in entries for variant in entry.invalidates)
    return Overview(tuple(places), _issues(entries), invalidated)


def held(entries: Iterable[Expectation], known: Known, place: Where) -> list[Expectation]:
    """Return the entries that can hold at a place."""
    return [entry for entry in entries if known.may_hold(entry.when, place)]


def due(entry: Expectation, as_of: date) -> bool:
    """Return whether an entry must be reviewed within thirty days and has not expired yet."""
    return entry.review_by is not None and as_of <= entry.review_by <= as_of + SOON


def word(entry: Expectation) -> str:
    """Return how an entry counts: xfail, flaky, or a skip's kind."""
    if entry.expect is not Expect.SKIP:
        return entry.expect.value
    return f"skip ({entry.kind or 'no kind'})"


def _tally(entries: Sequence[Expectation], platform: str, device: str | None, as_of: date) -> Tally:
    return Tally(
        platform,
        device,
        len(entries),
        dict(sorted(Counter(word(entry) for entry in entries).items())),
        min((entry.added for entry in entries if entry.added is not None), default=None),
        sum(entry.expired(as_of) for entry in entries),
        sum(due(entry, as_of) for entry in entries),
        tuple(sorted({variant for entry in entries for variant in entry.invalidates})),
    )


def _named_devices(entries: Iterable[Expectation], known: Known, platform: str) -> list[str]:
    """Return the devices of a platform that predicates name, and the archs as `arch:NAME`."""
    found: dict[str, None] = {}
    for entry in entries:
        for kind in ("device", "arch"):
            names = entry.when.names.get(kind)
            if names is not None and not names.negated:
                found |= dict.fromkeys(f"arch:{name}" if kind == "arch" else name for name in names.words)
    return [name for name in found if known.exists(_of_device(platform, name))]


def _of_device(platform: str, name: str) -> Where:
    arch = name.removeprefix("arch:")
    return Where(platform=platform, arch=arch) if arch != name else Where(platform=platform, device=name)


def _issues(entries: Iterable[Expectation]) -> tuple[OfIssue, ...]:
    by_issue: dict[str, list[Expectation]] = {}
    for entry in entries:
        by_issue.setdefault(entry.issue, []).append(entry)
    found = [
        OfIssue(
            issue,
            len(those),
            min((entry.added for entry in those if entry.added is not None), default=None),
            min((entry.review_by for entry in those if entry.review_by is not None), default=None),
        )
        for issue, those in by_issue.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.entries, each.issue)))
