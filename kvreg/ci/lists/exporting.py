"""Writes expectations as other tools' lists, for one place: what holds there and what the format can say.

Such lists know no flaky test and no end: what they cannot say is returned beside the text, never dropped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvreg.ci.lists import pytorch
from kvreg.ci.lists.skip_lists import DESELECT, REGEXP
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.node_ids import ANY_TAIL, Pattern
from kvreg.core.expectations.predicates import When, Where
from kvreg.core.expectations.vocabulary import Expect


@dataclass(frozen=True, slots=True)
class Exported:
    """A list as text, and what is not in it."""

    text: str
    written: int
    left_out: tuple[tuple[Expectation, str], ...]


def arguments(entries: Iterable[Expectation], place: Where, ids: IdIndex | None = None) -> Exported:
    """Return `--deselect=ID` lines, one an argument: `pytest @FILE` reads them, blanks and brackets included."""

    def lines(entry: Expectation) -> list[str] | str:
        found = _ids(entry.pattern, ids)
        return found if isinstance(found, str) else [f"{DESELECT}{each}" for each in found]

    return _by_line(entries, place, lines)


def intel(entries: Iterable[Expectation], place: Where, ids: IdIndex | None = None) -> Exported:
    """Return one skip list of Intel's form: the reason and issue as a comment, then ids or an expression."""

    def lines(entry: Expectation) -> list[str] | str:
        if entry.pattern.tail == ANY_TAIL:
            return [*_comment(entry), entry.pattern.base]
        if entry.pattern.is_glob and ids is None:
            return [*_comment(entry), f"{_expression(entry.pattern)}{REGEXP}"]
        found = _ids(entry.pattern, ids)
        return found if isinstance(found, str) else [*_comment(entry), *found]

    return _by_line(entries, place, lines, apart=True)


def array_api(entries: Iterable[Expectation], place: Where, expect: Expect, ids: IdIndex | None = None) -> Exported:
    """Return array-api-tests' file of one kind: skips or xfails."""

    def lines(entry: Expectation) -> list[str] | str:
        if entry.expect is not expect:
            return "no file is for flaky" if entry.expect is Expect.FLAKY else f"{entry.expect} has a file of its own"
        found = _ids(entry.pattern, ids)
        return found if isinstance(found, str) else [*_comment(entry), *found]

    return _by_line(entries, place, lines, apart=True)


def disabled(entries: Iterable[Expectation]) -> Exported:
    """Return PyTorch's JSON; it names platforms itself, so every entry that it can say is in it."""
    found: dict[str, tuple[str, set[str]]] = {}
    left: list[tuple[Expectation, str]] = []
    for entry in entries:
        name = pytorch.name(entry.pattern.base) if entry.pattern.tail in ("", ANY_TAIL) else None
        words = [word for word, when in pytorch.PLATFORMS.items() if when == entry.when]
        if name is None:
            left.append((entry, "no test of a class with all of its parameters"))
        elif not words and entry.when != When():
            left.append((entry, f"no word for {entry.when}"))
        else:
            found.setdefault(name, (entry.issue, set()))[1].update(words or ("",))
    document = {
        name: [_number(issue), issue, [] if "" in words else sorted(words)] for name, (issue, words) in found.items()
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    return Exported(text, len(document), tuple(left))


def _by_line(
    entries: Iterable[Expectation],
    place: Where,
    lines_of: Callable[[Expectation], list[str] | str],
    *,
    apart: bool = False,
) -> Exported:
    """Return the lines of the entries that hold at a place; `lines_of` gives a text where it has none, which says why.

    `apart` puts an empty line between entries, so that no comment reaches the next one.
    """
    blocks: list[list[str]] = []
    left: list[tuple[Expectation, str]] = []
    for entry in entries:
        if not entry.when.may_hold(place):
            continue
        if not entry.when.holds(place):
            left.append((entry, f"depends on {', '.join(entry.when.open_words(place))}, which is not said"))
            continue
        found = lines_of(entry)
        if isinstance(found, str):
            left.append((entry, found))
        else:
            blocks.append(found)
    gap = [""] if apart else []
    lines = [line for number, block in enumerate(blocks) for line in ([*gap, *block] if number else block)]
    return Exported("".join(f"{line}\n" for line in lines), len(blocks), tuple(left))


def _ids(pattern: Pattern, ids: IdIndex | None) -> list[str] | str:
    """Return ids, or starts of ids, that take what a pattern takes; why there are none where only ids would tell."""
    if ids is not None:
        return ids.hits(pattern) or "takes no collected id"
    if not pattern.is_glob:
        return [pattern.base + pattern.literal]
    if pattern.tail == ANY_TAIL:
        return [pattern.base]
    if re.fullmatch(r"[^*?\\]*\*\]", pattern.tail):
        return [pattern.base + pattern.literal]
    return "a wildcard within the parameters: --ids tells which ones it takes"


def _expression(pattern: Pattern) -> str:
    tail = re.sub(r"\\[*?]|[*?]+|.", _word, pattern.tail, flags=re.DOTALL)
    return f"{re.escape(pattern.base)}{tail}$"


def _word(sign: re.Match[str]) -> str:
    """Return one sign as an expression; a row of wildcards has one `.*`, since each more multiplies the work."""
    if sign[0][0] in "*?":
        return "." * sign[0].count("?") + ".*" * ("*" in sign[0])
    return re.escape(sign[0][-1])


def _comment(entry: Expectation) -> list[str]:
    said = ": ".join(filter(None, (entry.reason, entry.issue)))
    return [f"# {said}"] if said else []


def _number(issue: str) -> str:
    match = re.search(r"(\d+)$", issue)
    return match[1] if match else ""
