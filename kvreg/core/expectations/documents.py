"""Lists, findings and figures as JSON documents, schema 1."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.lint import Finding
from kvreg.core.expectations.overview import Overview
from kvreg.core.expectations.predicates import written

SCHEMA = 1


def entry(each: Expectation, as_of: date) -> dict[str, Any]:
    """Return one entry; what its file leaves out is null or empty."""
    return {
        "id": each.id,
        "test": each.test,
        "when": written(each.when),
        "expect": each.expect.value,
        "kind": each.kind.value if each.kind is not None else None,
        "reason": each.reason,
        "issue": each.issue,
        "owner": each.owner,
        "added": _day(each.added),
        "review_by": _day(each.review_by),
        "expired": each.expired(as_of),
        "invalidates": list(each.invalidates),
        "touches": list(each.touches),
        "hits": each.hits,
        "evidence": dict(each.evidence),
        "file": str(each.file),
        "line": each.line,
    }


def finding(each: Finding) -> dict[str, Any]:
    """Return one finding; `candidates` are live ids that a dead one may have become."""
    return {
        "code": each.code,
        "line": each.line,
        "test": each.test,
        "text": each.text,
        "candidates": list(each.candidates),
        "fixable": each.fixable,
    }


def figures(found: Overview, entries: tuple[Expectation, ...], file: Path, as_of: date) -> dict[str, Any]:
    """Return the overview of a list with its entries."""
    return {
        "schema": SCHEMA,
        "file": str(file),
        "as_of": str(as_of),
        "places": [
            {
                "platform": each.platform,
                "device": each.device,
                "entries": each.entries,
                "by_word": each.by_word,
                "oldest": _day(each.oldest),
                "expired": each.expired,
                "due": each.due,
                "invalidated": list(each.invalidated),
            }
            for each in found.places
        ],
        "issues": [
            {
                "issue": each.issue,
                "entries": each.entries,
                "oldest": _day(each.oldest),
                "next_review": _day(each.next_review),
            }
            for each in found.issues
        ],
        "invalidated": [{"variant": variant, "id": each.id} for variant, each in found.invalidated],
        "entries": [entry(each, as_of) for each in entries],
    }


def _day(day: date | None) -> str | None:
    return str(day) if day is not None else None
