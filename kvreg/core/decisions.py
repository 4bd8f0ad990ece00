"""Decisions as data: why each variant was taken or not. Rendering them is the CLI's business."""

from __future__ import annotations

from collections.abc import Iterable
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


def leading(decisions: Iterable[Decision]) -> Reason | None:
    """Return what a refusal is about: the gravest reason of the variant that came nearest to being accepted.

    Ops that some variant serves do not count, unless each op has one and only their formats disagree. None where
    nothing was rejected.
    """
    return next(iter(reasons_of_nearest(decisions)), None)


def reasons_of_nearest(decisions: Iterable[Decision]) -> tuple[Reason, ...]:
    """Return every reason against the variant that `leading` speaks of, the gravest first."""
    taken = list(decisions)
    served = {each.op for each in taken if each.verdict == "accepted"}
    missing = [each for each in taken if each.reasons and (each.op not in served or each.variant is None)]
    nearest = min(missing, key=lambda each: len(each.reasons), default=None)
    return nearest.reasons if nearest is not None else ()
