"""The check of a list of expectations: from the list and collected ids alone, with no test run, no card, no torch.

bad_entry, unknown_word       an entry that cannot be used as it stands
no_reason, no_issue, no_owner, no_added, no_review_by, no_kind      what an entry lacks
expired                       its day of review has passed
ahead, reversed, far          it was added on a day to come, is to be reviewed before that, or too late
dead                          it takes no collected id
wide, hits                    a glob takes more ids, or fewer, than it says
duplicate, shadowed, overlap  two entries speak of the same test at the same place
order                         entries are not sorted by test
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from itertools import combinations, pairwise

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.files import UNKNOWN_WORD, Survey
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.successors import Successors
from kvreg.core.near import suggestion

UNDECLARED_HITS = 16
"""Ids that a glob may take without saying how many: more than the values of two or three parameters that vary."""

LONGEST_REVIEW = timedelta(days=400)
"""From the day of the check to the next review: a year and a month's grace, so each is looked at every year."""
DAYS_DIFFER = timedelta(days=1)
"""How far `added` may lie ahead: where an entry is written, the day can be one later than where it is checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a list."""

    code: str
    line: int
    test: str
    text: str
    candidates: tuple[str, ...] = ()
    """Live ids that a dead one may have become."""
    successor: str | None = None
    """The only one that it can have become."""
    fixable: bool = False
    """Whether `--fix` mends it."""


def check(found: Survey, known: Known, as_of: date, ids: IdIndex | None = None) -> tuple[Finding, ...]:
    """Return everything that is wrong with a list, by line; without ids nothing is said of dead and wide entries."""
    findings = [Finding(fault.code, fault.line, fault.test, fault.text) for fault in found.faults]
    findings += _unknown_names(found.entries, known)
    findings += _expired(found.entries, as_of)
    findings += _misdated(found.entries, as_of)
    hits = _hits(found.entries, ids)
    if ids is not None:
        findings += _unmatched(found.entries, hits, ids)
    twins = _twins(found.entries)
    findings += [_duplicate(earlier, entry) for earlier, entry in twins]
    doubled = {entry.line for _, entry in twins}
    single = [(entry, taken) for entry, taken in zip(found.entries, hits, strict=True) if entry.line not in doubled]
    findings += _pairs(single, known, collected=ids is not None)
    findings += _order(found.entries)
    return tuple(sorted(findings, key=lambda each: (each.line, each.code, each.text)))


def _unknown_names(entries: Iterable[Expectation], known: Known) -> Iterator[Finding]:
    for entry in entries:
        for field, name, names in known.unknown(entry):
            text = f"{field}: required a known name, found {name!r}; {suggestion(name, names)}"
            yield Finding(UNKNOWN_WORD, entry.line, entry.test, text)


def _expired(entries: Iterable[Expectation], as_of: date) -> Iterator[Finding]:
    for entry in entries:
        if entry.expired(as_of) and entry.review_by is not None:
            days = (as_of - entry.review_by).days
            text = (
                f"review_by: required {as_of} or later, found {entry.review_by} ({days} days ago); "
                "run the test without the entry, then remove it or set the next day of review"
            )
            yield Finding("expired", entry.line, entry.test, text)


def _misdated(entries: Iterable[Expectation], as_of: date) -> Iterator[Finding]:
    for entry in entries:
        added, review_by = entry.added, entry.review_by
        if added is not None and added - as_of > DAYS_DIFFER:
            text = f"added: required a day that has come ({as_of}), found {added}; write the day on which it was added"
            yield Finding("ahead", entry.line, entry.test, text)
        if added is not None and review_by is not None and review_by < added:
            text = (
                f"review_by: required the day of added ({added}) or later, found {review_by}; correct one of the two"
            )
            yield Finding("reversed", entry.line, entry.test, text)
        if review_by is not None and review_by - as_of > LONGEST_REVIEW:
            latest = f"{as_of + LONGEST_REVIEW} ({LONGEST_REVIEW.days} days ahead)"
            text = f"review_by: required at most {latest}, found {review_by}; set an earlier day of review"
            yield Finding("far", entry.line, entry.test, text)


def _hits(entries: Sequence[Expectation], ids: IdIndex | None) -> list[list[str]]:
    """Return the ids that each entry takes; without collected ids, those that exact entries name."""
    if ids is None:
        exact = (entry.pattern for entry in entries if not entry.pattern.is_glob)
        ids = IdIndex(pattern.base + pattern.literal for pattern in exact)
    return [ids.hits(entry.pattern) for entry in entries]


def _unmatched(entries: Sequence[Expectation], hits: Sequence[list[str]], ids: IdIndex) -> Iterator[Finding]:
    successors = Successors(ids)
    for entry, taken in zip(entries, hits, strict=True):
        if not taken:
            yield _dead(entry, successors)
        elif entry.pattern.is_glob:
            yield from _count(entry, len(taken))


def _dead(entry: Expectation, successors: Successors) -> Finding:
    near = successors.of(entry.pattern)
    if near.live:
        remedy = f"nearest: {' or '.join(near.live)}"
    else:
        remedy = "nothing is like it; remove the entry if the test is gone"
    text = f"test: required a collected id, found none; {remedy}"
    return Finding("dead", entry.line, entry.test, text, near.live, near.sure, fixable=near.sure is not None)


def _count(entry: Expectation, taken: int) -> Iterator[Finding]:
    if entry.hits is None and taken > UNDECLARED_HITS:
        text = f"test: required at most {UNDECLARED_HITS} ids, found {taken}; narrow it, or say `hits: {taken}`"
        yield Finding("wide", entry.line, entry.test, text)
    elif entry.hits is not None and taken > entry.hits:
        text = f"hits: required {entry.hits} ids, found {taken}; look at the new ones, then say `hits: {taken}`"
        yield Finding("wide", entry.line, entry.test, text)
    elif entry.hits is not None and taken < entry.hits:
        text = (
            f"hits: required {entry.hits} ids, found {taken}; say `hits: {taken}`, or it would take as many new ones"
        )
        yield Finding("hits", entry.line, entry.test, text, successor=str(taken), fixable=True)


def _twins(entries: Iterable[Expectation]) -> list[tuple[Expectation, Expectation]]:
    """Return (earlier, entry) for each entry whose test and place an earlier one has."""
    first: dict[tuple[str, str], Expectation] = {}
    found = [(first.setdefault(order_key(entry), entry), entry) for entry in entries]
    return [(earlier, entry) for earlier, entry in found if earlier is not entry]


def _pairs(entries: Sequence[tuple[Expectation, list[str]]], known: Known, *, collected: bool) -> Iterator[Finding]:
    """Yield a finding for each of (entry, ids that it takes) that takes some which another does at the same place.

    Without `collected` ids, that one lies within the other is told from the texts of their patterns.
    """
    takers: dict[str, list[int]] = {}
    for place, (_, taken) in enumerate(entries):
        for node_id in taken:
            takers.setdefault(node_id, []).append(place)
    shared = Counter(pair for places in takers.values() for pair in combinations(places, 2))
    for (left, right), count in shared.items():
        (one, ones), (other, others) = entries[left], entries[right]
        if not known.meet(one.when, other.when):
            continue
        if known.contains(one.when, other.when) and _within(other, others, one, count, collected):
            yield _shadowed(other, one)
        elif known.contains(other.when, one.when) and _within(one, ones, other, count, collected):
            yield _shadowed(one, other)
        else:
            found = f"found line {one.line} ({one.test}) for {count} of its ids too"
            text = f"test: required one entry a test and place, {found}; let one of the two leave them out"
            yield Finding("overlap", other.line, other.test, text)


def _within(inner: Expectation, hits: Sequence[str], outer: Expectation, shared: int, collected: bool) -> bool:
    return shared == len(hits) if collected else outer.pattern.contains(inner.pattern)


def _shadowed(inner: Expectation, outer: Expectation) -> Finding:
    text = f"test: required an entry that says more than others, found it inside of line {outer.line} ({outer.test})"
    return Finding("shadowed", inner.line, inner.test, f"{text}; remove it, or narrow the other")


def _duplicate(first: Expectation, second: Expectation) -> Finding:
    names = [field.name for field in fields(Expectation) if field.name not in ("pattern", "when", "file", "line")]
    differing = [name for name in names if getattr(first, name) != getattr(second, name)]
    text = f"test: required once for a place, found in line {first.line} too"
    if differing:
        text += f" with another {', '.join(differing)}; keep one of the two"
    else:
        text += "; remove one"
    return Finding("duplicate", second.line, second.test, text, fixable=not differing)


def _order(entries: Sequence[Expectation]) -> Iterator[Finding]:
    in_file = sorted(entries, key=lambda entry: entry.line)
    for before, entry in pairwise(in_file):
        if order_key(entry) < order_key(before):
            text = f"order: required entries sorted by test, found it behind {before.test}; sort them"
            yield Finding("order", entry.line, entry.test, text, fixable=True)
            return


def order_key(entry: Expectation) -> tuple[str, str]:
    """Return what entries are sorted by."""
    return entry.test, str(entry.when)
