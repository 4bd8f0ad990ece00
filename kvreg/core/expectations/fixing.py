"""Mends what is mechanical in a list, in its text: comments, quotes and the order of keys stay as they are.

Mended: duplicates that are equal in every field (the first one takes their comments), ids with a single sure
successor, `hits` that is too high, the order of entries. Everything else needs somebody who knows why a test fails.
What the mended text says is read again and compared with what it should say, so that a list written in a way that
this does not understand is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kvreg.core.errors import BadFile
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.files import Survey, survey_text
from kvreg.core.expectations.lint import Finding, order_key
from kvreg.core.expectations.node_ids import Pattern
from kvreg.core.expectations.writing import scalar


@dataclass(frozen=True, slots=True)
class Mended:
    """The new text of a list, the findings that it no longer has, and why others were left although mechanical."""

    text: str
    done: tuple[Finding, ...]
    left: str | None = None


def mend(found: Survey, findings: Sequence[Finding]) -> Mended:
    """Return a list's text without its mechanical findings; unchanged, with the reason, where that cannot be done."""
    wanted = [finding for finding in findings if finding.fixable]
    if not wanted:
        return Mended(found.text, ())
    blocks = _blocks(found)
    if blocks is None:
        return Mended(found.text, (), "entries that do not start on lines of their own cannot be edited by line")
    before, by_line, after = blocks
    entries = {entry.line: entry for entry in found.entries}
    for finding in wanted:
        line = finding.line
        if finding.code == "duplicate":
            kept = next(each for each in entries.values() if order_key(each) == order_key(entries[line]))
            above, body = _remarks(by_line[kept.line])
            by_line[kept.line] = [*above, *filter(str.strip, _remarks(by_line[line])[0]), *body]
            del by_line[line], entries[line]
        elif finding.code == "dead" and finding.successor is not None:
            by_line[line] = _replaced(by_line[line], "test", finding.test, finding.successor)
            entries[line] = replace(entries[line], pattern=Pattern(finding.successor))
        elif finding.code == "hits" and finding.successor is not None:
            by_line[line] = _replaced(by_line[line], "hits", str(entries[line].hits), finding.successor)
            entries[line] = replace(entries[line], hits=int(finding.successor))
    order = list(by_line)
    if any(finding.code == "order" for finding in wanted):
        if set(order) != set(entries):
            return Mended(found.text, (), "entries that cannot be read have no place in an order; mend them first")
        order.sort(key=lambda line: order_key(entries[line]))
    text = "".join([*before, *(line for start in order for line in by_line[start]), *after])
    if not _says(text, found, [entries[line] for line in order if line in entries]):
        return Mended(found.text, (), "the list is written in a form that cannot be edited by line")
    return Mended(text, tuple(wanted))


def without(found: Survey, gone: Collection[int]) -> str | None:
    """Return a list's text without the entries that start at these lines, all comments kept.

    None where the list is written in a form that cannot be edited by line.
    """
    blocks = _blocks(found)
    if blocks is None:
        return None
    before, by_line, after = blocks
    kept = [line for start, block in by_line.items() for line in (_remarks(block)[0] if start in gone else block)]
    if set(by_line) <= set(gone):
        before = [*before[:-1], before[-1].replace("expectations:", "expectations: []", 1)]
    text = "".join([*before, *kept, *after])
    return text if _says(text, found, [entry for entry in found.entries if entry.line not in gone]) else None


def _blocks(found: Survey) -> tuple[list[str], dict[int, list[str]], list[str]] | None:
    """Return the lines above the first entry, those of each entry by its first line, and those below the last.

    What stands between two entries, comments above all, belongs to the lower one.
    """
    lines = found.text.splitlines(keepends=True)
    starts = list(found.last_lines)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    heads = [number for number, line in enumerate(lines, 1) if re.match(r"expectations:\s*(#.*)?$", line)]
    if not starts or len(heads) != 1 or starts != sorted(set(starts)):
        return None
    end = heads[0]
    by_line: dict[int, list[str]] = {}
    for start in starts:
        last = found.last_lines[start]
        body = lines[end:last]
        first = next((line for line in body if line.strip() and not line.lstrip().startswith("#")), "")
        if start <= end or not re.match(r" *-(\s|$)", first):
            return None
        by_line[start] = body
        end = last
    return lines[: heads[0]], by_line, lines[end:]


def _remarks(block: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what stands above an entry, and the entry."""
    first = next(number for number, line in enumerate(block) if line.strip() and not line.lstrip().startswith("#"))
    return list(block[:first]), list(block[first:])


def _replaced(block: Sequence[str], key: str, old: str, new: str) -> list[str]:
    """Return a block with the value of one key replaced, as it is where the value is not found in one piece."""
    value = re.compile(
        rf"(?P<key>^ *(?:- +)?(?:{{ *)?{key}: +|[{{,] *{key}: +)(?P<quote>['\"]?){re.escape(old)}(?P=quote)"
    )
    done: list[str] = []
    for number, line in enumerate(block):
        match = value.search(line)
        if match is None:
            done.append(line)
            continue
        in_flow = "{" in match["key"] or "," in match["key"]
        quoted = {"": scalar(new, flow=in_flow), '"': json.dumps(new), "'": "'" + new.replace("'", "''") + "'"}
        text = quoted[match["quote"]]
        return [*done, line[: match.start("quote")] + text + line[match.end() :], *block[number + 1 :]]
    return done


def _says(text: str, found: Survey, wanted: Sequence[Expectation]) -> bool:
    """Return whether a text is read as these entries, their lines apart."""
    try:
        again = survey_text(text, found.file)
    except BadFile:
        return False
    return [replace(entry, line=0) for entry in again.entries] == [replace(entry, line=0) for entry in wanted]
