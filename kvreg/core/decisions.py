"""Decisions as data: why each variant was taken or not. Rendering them is the CLI's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvreg.core.requests import Op

Verdict = Literal["accepted", "rejected"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One failed constraint; both sides are quoted."""

    code: str
    """Stable word for programs: head_size, page, dtype, feature, layout, arch, evidence, family, ..."""
    field: str
    """The request's or device's field that it is about."""
    required: str
    found: str
    remedy: str
    """What to do next: another value, or the command that would lift the constraint."""

    def __str__(self) -> str:
        return f"{self.field}: required {self.required}, found {self.found}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one variant; a rejected one carries every constraint that it failed."""

    variant: str | None
    """Variant id; None where the registry has no variant of the mode for the op."""
    op: Op
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
