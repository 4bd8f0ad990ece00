"""What the audit has counted, test by test: the values that travel with a report, and their sum."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TALLY = "kvreg_audit"
"""Attribute of a test's report that holds what it compared; xdist carries it, being plain values."""


@dataclass(slots=True)
class Tally:
    """What the audit says of all tests."""

    judged: int = 0
    exempt: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, test: str, part: dict[str, Any]) -> None:
        """Take what one phase of a test has compared."""
        self.judged += part["judged"]
        self.exempt.update(part["exempt"])
        self.findings += [{"test": test, **finding} for finding in part["findings"]]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {"judged": self.judged, "exempt": dict(self.exempt), "findings": self.findings}
