"""The order of accepted variants: tier, accuracy class, latency, name, and what stands in for a missing latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvreg.core.backends import Backend
from kvreg.core.devices import Device
from kvreg.core.evidence import Evidence
from kvreg.core.lookup import Lookup
from kvreg.core.modes import Format
from kvreg.core.requests import Accuracy, Request
from kvreg.core.selections import Note
from kvreg.core.standing import measured_at
from kvreg.core.variants import Variant


@dataclass(frozen=True, slots=True)
class Candidate:
    """An accepted variant."""

    variant: Variant
    backend: Backend
    evidence: Evidence
    format: Format
    latency_us: float | None
    notes: tuple[Note, ...]

    def order(self, accuracy: Accuracy) -> tuple[int, bool, float, str]:
        """Return what candidates are sorted by, the best first."""
        latency = self.latency_us if self.latency_us is not None else float("inf")
        return self.evidence.tier.rank, self.variant.accuracy != accuracy, latency, str(self.variant.id)


def ranked(accepted: Sequence[Candidate], request: Request, device: Device, lookup: Lookup) -> list[Candidate]:
    """Return the candidates, those without times ranked by one at another head size where a rival has times.

    Without such a rival nothing is looked up: no order depends on it.
    """
    timed = {each.variant.op for each in accepted if each.latency_us is not None}
    return [
        _with_stand_in(each, request, lookup)
        if each.variant.op in timed and not each.evidence.timings and each.evidence.device == device.key
        else each
        for each in accepted
    ]


def _with_stand_in(untimed: Candidate, request: Request, lookup: Lookup) -> Candidate:
    """Rank by the next larger head size that was timed, or by a smaller one in proportion to the bytes of a row."""
    variant = untimed.variant
    near = lookup.timed_near(untimed.backend, variant.mode, str(variant.id), untimed.evidence.kernel_hash)
    point = measured_at(near, variant.op, request) if near is not None else None
    if near is None or point is None:
        return untimed
    us = point.us * max(1.0, request.head_size / near.head_size)
    stands = f"ranked as {us:.4g} us, from {point.us:.4g} us at {near.head_size}"
    note = Note("speed_stand_in", f"{variant.id}: no time at head size {request.head_size}: {stands}")
    return replace(untimed, latency_us=us, notes=(*untimed.notes, note))
