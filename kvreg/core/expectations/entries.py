"""An expectation: one recorded exception, as a typed value with the file and line that it stands in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path

from kvreg.core.expectations.node_ids import Pattern
from kvreg.core.expectations.predicates import When, Where
from kvreg.core.expectations.vocabulary import REQUIRED, Expect, Kind

ID_DIGITS = 8
"""Of 5 000 entries, two share the first eight hex digits with a chance of 0.3 %; `show` then names both."""


@dataclass(frozen=True)
class Expectation:
    """One entry. Texts are empty and dates None where the file leaves them out, which the check reports."""

    pattern: Pattern
    when: When
    expect: Expect
    file: Path
    line: int
    """Line, from 1, at which the entry starts."""
    kind: Kind | None = None
    """Why it cannot run: of a skip only."""
    reason: str = ""
    issue: str = ""
    """A URL, or owner/repository#number."""
    owner: str = ""
    added: date | None = None
    review_by: date | None = None
    """The day after which the entry counts as expired."""
    invalidates: tuple[str, ...] = ()
    """Variants (`name@version`) that are not validated where it holds."""
    touches: tuple[str, ...] = ()
    """Variants that the test runs and that stay validated: select shows the entry beside them."""
    hits: int | None = None
    """How many ids a glob is meant to take."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """What was seen: measured error, seeds, environment, last failing run, ..."""

    @property
    def test(self) -> str:
        """The node id or pattern as it is written."""
        return self.pattern.text

    @cached_property
    def id(self) -> str:
        """Eight hex digits of what the entry is about, its test and predicate: they outlive any other edit."""
        return hashlib.sha256(f"{self.test}\n{self.when}".encode()).hexdigest()[:ID_DIGITS]

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    @property
    def lacking(self) -> tuple[str, ...]:
        """Required fields that the file leaves out or that could not be read: such an entry excuses nothing."""
        needed = (*REQUIRED, "kind") if self.expect is Expect.SKIP else REQUIRED
        return tuple(name for name in needed if not getattr(self, name))

    def expired(self, day: date) -> bool:
        """Return whether it was to be reviewed before `day`."""
        return self.review_by is not None and self.review_by < day

    def holds(self, where: Where) -> bool:
        """Return whether it is known to hold at a place."""
        return self.when.holds(where)
