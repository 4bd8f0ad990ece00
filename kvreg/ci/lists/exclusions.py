"""What a foreign list switches off, as it stands there: the common form of all formats before it becomes an entry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvreg.core.expectations.predicates import When
from kvreg.core.expectations.vocabulary import Expect

_LINK = re.compile(r"https?://[^\s)>\]\"']+")
_SHORT_ISSUE = re.compile(r"\b[\w.-]+/[\w.-]+#\d+\b")

_NAME = re.compile(r"test_\w+")


class How(StrEnum):
    """By which means a list switches something off."""

    DESELECT = "deselect"
    """`--deselect`, or a line of a skip list: an id, or a prefix that takes every id starting with it."""
    IGNORE = "ignore"
    """`--ignore`: a file or folder that is not even collected."""
    KEYWORD = "keyword"
    """`-k "not WORD"`: whatever has WORD in its name."""
    REGEXP = "regexp"
    """A regular expression over ids."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list switches something off: in its own words, and what those are taken for."""

    label: str
    """Job, folder or platform words of the list."""
    when: When | None
    """None where no declared word says it."""
    guess: str = ""
    """How `when` was read out of the label; empty where the list says it in so many words."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One thing that a list switches off at one place."""

    how: How
    text: str
    """Id, path, keyword or expression, quotes removed."""
    file: Path
    line: int
    place: Place
    expect: Expect = Expect.SKIP
    reason: str = ""
    issue: str = ""
    paths: tuple[str, ...] = ()
    """Of a keyword: the files and folders that it was said of; none means the whole suite."""
    remark: str = ""
    """What else the list says that no field holds: `a failure is swallowed by || true`."""


def reason_and_issue(comment: str) -> tuple[str, str]:
    """Return what a comment says and the first issue that it names.

    A link alone is no reason, and neither is the name of a test, which many such comments repeat.
    """
    text = " ".join(comment.split())
    found = _LINK.search(text) or _SHORT_ISSUE.search(text)
    issue = found[0].rstrip(".,;:") if found else ""
    # At its end a link is no part of the sentence.
    at_end = rf"[\s,;:(\[-]*(?:\b(?:see|cf\.?|issue))?[\s:]*{re.escape(issue)}[\s.)\]]*$"
    reason = re.sub(at_end, "", text) if issue else text
    return ("" if _NAME.fullmatch(reason) else reason), issue


def comment_above(lines: list[str], line: int) -> str:
    """Return the comment directly above a line (from 1), or above the first of those that a backslash joins.

    A command that is commented out is no comment.
    """
    while line > 1 and lines[line - 2].rstrip().endswith("\\"):
        line -= 1
    found: list[str] = []
    for text in reversed(lines[: line - 1]):
        stripped = text.strip()
        if not stripped.startswith("#"):
            break
        found.append(stripped.lstrip("#").strip())
    kept = [text for text in reversed(found) if "pytest" not in text and not text.startswith(("- ", "&&"))]
    return " ".join(kept)


def in_order(exclusions: Iterable[Exclusion]) -> list[Exclusion]:
    """Return exclusions by file, line and text, each once."""
    once = {(str(each.file), each.line, each.how, each.text, each.place.label): each for each in exclusions}
    return [once[key] for key in sorted(once)]
