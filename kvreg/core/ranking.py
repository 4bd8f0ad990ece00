"""The order of accepted variants: tier, accuracy class, latency, name; what stands in for a latency, and when two tie.

Two latencies that differ by less than CLOSE are one: which of them is smaller may differ from run to run. Among such
variants the order is: a time of its own before one that stands in; the faster over the other points that all of them
were timed at, since a cache that was selected for one bucket meets others too; name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvreg.core.backends import Backend
from kvreg.core.devices import Device
from kvreg.core.evidence import Evidence
from kvreg.core.lookup import Lookup
from kvreg.core.modes import Format
from kvreg.core.requests import Accuracy, Op, Request
from kvreg.core.selections import Note
from kvreg.core.standing import measured_at
from kvreg.core.variants import Variant

CLOSE = 0.03
"""Share by which a latency must be smaller to count as smaller: what the tuner asks of a config that replaces a
default. Times of variants come from several runs and cards, and half of their samples lie within 6 % at worst."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An accepted variant."""

    variant: Variant
    backend: Backend
    evidence: Evidence
    format: Format
    latency_us: float | None
    notes: tuple[Note, ...]
    stand_in: Note | None = None
    """Where `latency_us` is not its own: what it was made of."""

    @property
    def latency(self) -> float:
        """Microseconds; infinity for a variant that nothing is known of."""
        return self.latency_us if self.latency_us is not None else math.inf

    def rank(self, accuracy: Accuracy) -> tuple[int, bool]:
        """Return what goes before any latency: tier, and whether its class is another than was asked for."""
        return self.evidence.tier.rank, self.variant.accuracy != accuracy


def ranked(accepted: Sequence[Candidate], request: Request, device: Device, lookup: Lookup) -> list[Candidate]:
    """Return the candidates of each op, the best first.

    Those without times are ranked by one at another head size where a rival has times. Without such a rival nothing is
    looked up: no order depends on it.
    """
    timed = {each.variant.op for each in accepted if each.latency_us is not None}
    known = [
        _with_stand_in(each, request, lookup)
        if each.variant.op in timed and not each.evidence.timings and each.evidence.device == device.key
        else each
        for each in accepted
    ]
    return [each for op in Op for each in _in_order([one for one in known if one.variant.op is op], request.accuracy)]


def notes_on(ordered: Iterable[Candidate], winners: Mapping[Op, Candidate], accuracy: Accuracy) -> Iterator[Note]:
    """Yield whose time was no own one where latency decided, and each winner that a tie made one."""
    for each in ordered:
        winner = winners.get(each.variant.op)
        if winner is None or each.rank(accuracy) != winner.rank(accuracy) or each.format != winner.format:
            continue
        if each.stand_in is not None:
            yield each.stand_in
        if each.latency < winner.latency:
            times = f"{winner.latency:.4g} us against {each.latency:.4g}"
            why = "has no time of its own" if each.stand_in and not winner.stand_in else "is slower at other sizes"
            text = f"{winner.variant.id}: {times} of {each.variant.id} is a tie within {CLOSE:.0%}, and that one {why}"
            yield Note("speed_tie", text)


def _in_order(candidates: Sequence[Candidate], accuracy: Accuracy) -> Iterator[Candidate]:
    left = sorted(candidates, key=lambda each: (each.rank(accuracy), each.latency, str(each.variant.id)))
    while left:
        first = left[0]
        tied = [
            each
            for each in left
            if each.rank(accuracy) == first.rank(accuracy) and each.latency * (1 - CLOSE) <= first.latency
        ]
        elsewhere = _elsewhere(tied)
        yield from sorted(tied, key=lambda each: (each.stand_in is not None, elsewhere(each), str(each.variant.id)))
        left = left[len(tied) :]


def _elsewhere(tied: Sequence[Candidate]) -> Callable[[Candidate], float]:
    """Return the mean logarithm of a candidate's times at the points that all with times have."""
    points = {
        str(each.variant.id): {(one.batch, one.context, one.group): one.us for one in each.evidence.timings}
        for each in tied
        if each.evidence.timings
    }
    shared = set.intersection(*(set(times) for times in points.values())) if points else set()

    def mean(candidate: Candidate) -> float:
        times = points.get(str(candidate.variant.id))
        return sum(math.log(times[point]) for point in shared) if times else 0.0

    return mean


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
    return replace(untimed, latency_us=us, stand_in=note)
