"""What a check has found: plain values, so that they travel from a worker into a journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "failed", "skipped"]

MOST_FAILURES = 8
"""Failures of one check that are kept; the first ones name the place."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The end of one check."""

    status: Status
    detail: str
    """What was looked at, in numbers; why, where it was skipped."""
    failures: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON holds it."""
        return asdict(self)

    @classmethod
    def of_json(cls, record: dict[str, Any]) -> Finding:
        """Return what `to_json` gave."""
        return cls(record["status"], record["detail"], tuple(record["failures"]))


def judged(detail: str, failures: Iterable[str]) -> Finding:
    """Return the finding of a check that ran."""
    found = tuple(failures)
    return Finding("failed" if found else "ok", detail, found[:MOST_FAILURES])


def skipped(reason: str) -> Finding:
    """Return the finding of a check that could not run here."""
    return Finding("skipped", reason)
