"""Who wins a race: paired rounds, a threshold, and ties that go to the incumbent. Pure arithmetic.

Two configs are compared by the ratios of their times round by round, so that what slows a whole round (a clock, a
neighbour) cancels. One is better than another when the median ratio is at least 3 % in its favour and that gain is
larger than the noise: the 95 % half-width of the median, 1.96 * 1.2533 * s / sqrt(n), with s = 1.4826 * the median
absolute deviation of the n ratios (both factors are those of a normal distribution).

The default wins unless something is better than it. Of those that are, the winner is the first, in the order of the
space and the stored config in front, that is not worse than the fastest: equals must not trade places from run to run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_GAIN = 0.03
"""AITER's threshold for committing a config, too; below it, equal kernels were seen to differ between runs."""

_NORMAL = 1.4826
_OF_MEDIAN = 1.2533
_BOTH_SIDES = 1.96


@dataclass(frozen=True, slots=True)
class Comparison:
    """One config against another."""

    gain: float
    """Part of the other's time that is saved: 0.1 is 10 % less; negative is slower."""
    noise: float
    """Half-width of the gain's 95 % interval."""

    @property
    def better(self) -> bool:
        """Whether the gain counts."""
        return self.gain >= LEAST_GAIN and self.gain > self.noise


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant after the race."""

    place: int
    """In the order that was given."""
    us: float
    spread: float
    """Width of the middle half of its samples over their median."""
    over_default: Comparison


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner and why."""

    winner: int
    """Place of the winner in the order that was given."""
    fastest: int
    tie: bool
    """Whether something else was as fast, or faster by less than counts."""
    standings: tuple[Standing, ...]
    """Those that were timed, in the order that was given."""

    def of(self, place: int) -> Standing:
        """Return a contestant's standing."""
        return next(each for each in self.standings if each.place == place)


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare samples of the same rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    middle = statistics.median(ratios)
    deviation = _NORMAL * statistics.median(abs(ratio - middle) for ratio in ratios)
    return Comparison(1.0 - middle, _BOTH_SIDES * _OF_MEDIAN * deviation / math.sqrt(len(ratios)))


def decide(samples: Sequence[Sequence[float]], *, default: int = 0, stored: int | None = None) -> Decision:
    """Return who wins. `samples[i]`: microseconds of contestant i in each round, none for one that is out.

    `default` and `stored` (the config of the present tuned entry) are places in `samples`. Where the default itself is
    out, the fastest takes its part. Raises ValueError when nobody was timed.
    """
    timed = [place for place, taken in enumerate(samples) if taken]
    if not timed:
        raise ValueError("a race needs a contestant with samples")
    medians = {place: statistics.median(samples[place]) for place in timed}
    base = default if default in timed else min(timed, key=lambda place: medians[place])
    standings = tuple(
        Standing(place, medians[place], _spread(samples[place]), compare(samples[place], samples[base]))
        for place in timed
    )
    ahead = [each.place for each in standings if each.place != base and each.over_default.better]
    fastest = min(timed, key=lambda place: medians[place])
    if not ahead:
        equals = [place for place in timed if place != base and not compare(samples[base], samples[place]).better]
        return Decision(base, fastest, bool(equals), standings)
    best = min(ahead, key=lambda place: medians[place])
    equal = [place for place in ahead if not compare(samples[best], samples[place]).better]
    winner = stored if stored in equal else equal[0]
    return Decision(winner, fastest, len(equal) > 1, standings)


def _spread(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)
