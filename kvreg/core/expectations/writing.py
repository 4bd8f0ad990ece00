"""Writes a list of expectations as the YAML that `files` reads: sorted by test, quoted only where YAML needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.predicates import written

_PLAIN = re.compile(r"[A-Za-z0-9_./][^\x00-\x1f#'\"&*!|>%@`{}\x7f-\uffff]*")
"""Texts that YAML reads as they are behind a key, without quotes, `: ` and a blank at the end apart."""
_NULLS = ("null", "Null", "NULL", "~")


def text(entries: Iterable[Expectation], *, heading: Sequence[str] = ()) -> str:
    """Return the list of these entries; `heading` is written above it as comments."""
    ordered = sorted(entries, key=lambda entry: (entry.test, str(entry.when)))
    lines = [f"# {line}".rstrip() for line in heading]
    lines += ["schema: 1", "expectations:" if ordered else "expectations: []"]
    for entry in ordered:
        lines += _entry(entry)
    return "\n".join(lines) + "\n"


def scalar(value: str, *, flow: bool = False) -> str:
    """Return a text as YAML: plain where it reads the same, quoted as JSON otherwise."""
    plain = _PLAIN.fullmatch(value) and ": " not in value and not value.endswith((" ", ":")) and value not in _NULLS
    return value if plain and not (flow and re.search(r"[\[\],]", value)) else json.dumps(value)


def _entry(entry: Expectation) -> Iterator[str]:
    yield f"- test: {scalar(entry.test)}"
    when = written(entry.when)
    yield f"  when: {when if isinstance(when, str) else _flow(when)}"
    yield f"  expect: {entry.expect}"
    fields: dict[str, object] = {
        "kind": entry.kind,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "added": entry.added,
        "review_by": entry.review_by,
        "hits": entry.hits,
    }
    for name, value in fields.items():
        if value not in (None, ""):
            yield f"  {name}: {scalar(str(value))}"
    for name, listed in (("invalidates", entry.invalidates), ("touches", entry.touches)):
        if listed:
            yield f"  {name}: [{', '.join(scalar(each, flow=True) for each in listed)}]"
    if entry.evidence:
        yield f"  evidence: {_flow(dict(entry.evidence))}"


def _flow(values: dict[str, str | list[str]] | dict[str, str]) -> str:
    shown = [
        f"{scalar(name, flow=True)}: "
        + (
            scalar(value, flow=True)
            if isinstance(value, str)
            else f"[{', '.join(scalar(each, flow=True) for each in value)}]"
        )
        for name, value in values.items()
    ]
    return f"{{{', '.join(shown)}}}"
