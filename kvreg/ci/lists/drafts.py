"""From what foreign lists switch off to draft entries: nothing is widened, nothing is invented.

An entry needs an exact id, or a glob inside one test's parameters. A file that is ignored, a keyword and a regular
expression say neither; with collected ids they become the tests that they take, without ids they are left out and
named. So is a place that no declared word says. What an entry lacks (issue, owner, day of review, kind) is counted.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvreg.ci.lists.exclusions import Exclusion, How, in_order
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.node_ids import ANY_TAIL, Pattern, escaped, file_of, misread, split
from kvreg.core.expectations.vocabulary import Expect


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that became no entry, and why."""

    exclusion: Exclusion
    why: str


@dataclass(frozen=True, slots=True)
class Drafts:
    """What an import gives."""

    exclusions: tuple[Exclusion, ...]
    entries: tuple[Expectation, ...]
    left_out: tuple[LeftOut, ...]
    sources: Mapping[str, Exclusion] = field(default_factory=dict)
    """Id of an entry -> where it came from."""

    @property
    def missing(self) -> dict[str, int]:
        """Field -> entries that lack it."""
        lacking: Counter[str] = Counter()
        for entry in self.entries:
            lacking.update(lacks(entry))
        return dict(lacking)

    @property
    def guesses(self) -> dict[str, str]:
        """Label of a place -> what it was taken for, where the list does not say it itself."""
        used = {id(each.place): each.place for each in self.sources.values() if each.place.guess}
        return {place.label: place.guess for place in used.values()}


def lacks(entry: Expectation) -> tuple[str, ...]:
    """Return the fields that an entry needs and does not have."""
    needed = {
        "kind": entry.expect is not Expect.SKIP or entry.kind is not None,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "added": entry.added,
        "review_by": entry.review_by,
    }
    return tuple(name for name, value in needed.items() if not value)


def drafts(
    exclusions: Iterable[Exclusion], named: Iterable[tuple[str, str]] = (), ids: IdIndex | None = None
) -> Drafts:
    """Return the entries of what lists switch off; `named` are (id, place) that a job runs by name, `ids` all ids."""
    run_elsewhere = set(named)
    ordered = in_order(exclusions)
    entries: dict[str, Expectation] = {}
    sources: dict[str, Exclusion] = {}
    left: list[LeftOut] = []
    for each in ordered:
        found, why = _entries(each, run_elsewhere, ids)
        if why is not None:
            left.append(LeftOut(each, why))
        for entry in found:
            sources.setdefault(entry.id, each)
            kept = entries.get(entry.id, entry)
            # What several jobs leave out alike is one entry, with the first reason and issue that one of them gives.
            entries[entry.id] = replace(kept, reason=kept.reason or entry.reason, issue=kept.issue or entry.issue)
    listed = tuple(sorted(entries.values(), key=lambda entry: (entry.test, str(entry.when))))
    return Drafts(tuple(ordered), listed, tuple(left), sources)


def _entries(
    each: Exclusion, named: Iterable[tuple[str, str]], ids: IdIndex | None
) -> tuple[list[Expectation], str | None]:
    """Return the entries of one exclusion, and why there are none."""
    when = each.place.when
    if when is None:
        strange = f" ({each.place.guess})" if each.place.guess else ""
        return [], f"no declared word says {each.place.label!r}{strange}"
    if each.how is How.DESELECT and _runs(each, named):
        return [], "a job runs it by name: a split, not an exception"
    patterns, why = _patterns(each, ids)
    return [
        Expectation(Pattern(text), when, each.expect, Path(), 0, reason=each.reason, issue=each.issue)
        for text in patterns
    ], why


_NO_TEST = {How.IGNORE: "a file or folder", How.KEYWORD: "a keyword", How.REGEXP: "an expression"}


def _patterns(each: Exclusion, ids: IdIndex | None) -> tuple[list[str], str | None]:
    """Return the patterns that take exactly what an exclusion takes, and why there are none."""
    if each.how is How.REGEXP and _compiled(each.text) is None:
        return [], "required a regular expression, found a text that is none"
    if ids is not None:
        taken = _taken(each, ids)
        return _compact(taken, ids), None if taken else "takes no collected id"
    if each.how is not How.DESELECT:
        return [], f"{_NO_TEST[each.how]} is no test; --ids tells which ones it takes"
    base, tail = split(each.text)
    text = base + escaped(tail) if tail else base + ANY_TAIL
    unread = misread(text)
    return ([], f"{unread}; --ids tells which ones it takes") if unread is not None else ([text], None)


def _taken(each: Exclusion, ids: IdIndex) -> list[str]:
    every = ids.ordered
    if each.how is How.REGEXP:
        expression = _compiled(each.text)
        return [node_id for node_id in every if expression is not None and expression.match(node_id)]
    if each.how is How.IGNORE:
        return [node_id for node_id in every if _below(file_of(node_id), each.text)]
    if each.how is How.KEYWORD:
        word = each.text.lower()
        said_of = [node_id for node_id in every if word in node_id.lower()] if " " not in word else []
        return [node_id for node_id in said_of if not each.paths or _any_below(file_of(node_id), each.paths)]
    exact = _exact(each.text, ids)
    if exact:
        return exact
    # pytest takes every id that starts with the text; the test with all of its parameters is what is meant.
    base, tail = split(each.text)
    return [] if tail else [node_id for node_id in every if _ends_alike(split(node_id)[0], base)]


def _exact(text: str, ids: IdIndex) -> list[str]:
    if text in ids:
        return [text]
    base, tail = split(text)
    same = [other + tail for other in ids.tests if _ends_alike(other, base) and other + tail in ids]
    return same if tail and len(same) == 1 else []


def _ends_alike(one: str, other: str) -> bool:
    """Return whether two ids differ at most in the folder that they are told from."""
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _runs(each: Exclusion, named: Iterable[tuple[str, str]]) -> bool:
    """Return whether a job of the same place names an id to run."""
    return any(place == str(each.place.when) and _ends_alike(each.text, ran) for ran, place in named)


def _below(file: str, path: str) -> bool:
    """Return whether a file is what `--ignore` names, or lies in it; a part of a path at its start may be missing."""
    path = path.rstrip("/").partition("::")[0]
    if any(sign in path for sign in "*?["):
        return fnmatch.fnmatch(file, path)
    return _ends_alike(file, path) or file.startswith(f"{path}/") or f"/{path}/" in f"/{file}"


def _any_below(file: str, paths: Iterable[str]) -> bool:
    return any(_below(file, path) for path in paths)


def _compiled(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except re.error:
        return None


def _compact(taken: Iterable[str], ids: IdIndex) -> list[str]:
    """Return patterns for ids: a whole test where all of its cases are taken, else each case."""
    by_base: dict[str, list[str]] = {}
    for node_id in taken:
        base, tail = split(node_id)
        by_base.setdefault(base, []).append(tail)
    found: list[str] = []
    for base, tails in by_base.items():
        if len(tails) > 1 and len(tails) == len(ids.tests[base]):
            found.append(base + ANY_TAIL)
        else:
            found += [base + escaped(tail) for tail in tails]
    return found
