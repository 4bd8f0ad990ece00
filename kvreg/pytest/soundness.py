"""Whether a comparison that passed could have failed: what else would have passed it, and how wide it may be.

A comparison of `actual` with `expected` holds where |actual - expected| <= atol + rtol * |expected|. It proves nothing
if it also holds for a result that is plainly wrong (zeros, the mean, the rows exchanged), or if the actual result does
not correlate with the expected one. Pure functions of numpy arrays; nothing is printed or raised.

The widest sound tolerance. Let s be the standard deviation of `expected` and every error at most t. Then the result's
deviation from its mean has an angle of at most asin(t / s) to the expected one's, so its correlation is at least
sqrt(1 - (t / s)^2): at least c for t <= s * sqrt(1 - c^2). With c = .99 that is .141 s. Nothing that passes an
absolute tolerance of .141 s, errors placed as unluckily as may be, correlates by less than .99; so neither zeros nor a
constant nor exchanged rows pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_CORRELATION = 0.99
"""Below it a result is not the expected one with rounding: int4's own rounding of N(0,1) rows leaves .993."""
SOUND_SHARE = math.sqrt(1 - LEAST_CORRELATION**2)
"""Tolerance over standard deviation from which on a passing result may correlate by less: .141."""
FEWEST = 8
"""Elements from which on a comparison is judged: of fewer, some right results are near their mean by chance."""
ROUNDINGS = 4.0
"""Roundings of the coarser dtype within which values count as constant."""

ZEROS, MEAN, MEAN_ROW, SHUFFLED = "zeros", "the mean", "the mean row", "shuffled rows"
SUBSTITUTES = (ZEROS, MEAN, MEAN_ROW, SHUFFLED)
"""Wrong results that are tried."""

EXACT, INTEGERS, SMALL, CONSTANT, UNREADABLE = (
    "no tolerance: rtol and atol are 0",
    "integers or booleans",
    f"fewer than {FEWEST} finite elements",
    "expected is zero everywhere",
    "no plain numbers",
)
EXEMPT = (EXACT, INTEGERS, SMALL, CONSTANT, UNREADABLE)
"""Why a comparison is not judged."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one comparison that passed is worth."""

    exempt: str | None = None
    """A word of EXEMPT; the other fields say nothing then."""
    passes: tuple[str, ...] = ()
    """Words of SUBSTITUTES: wrong results that would pass too."""
    correlation: float | None = None
    """Of the actual with the expected result; None where expected is constant but not zero."""
    widest: float = 0.0
    """Largest sound atol of two digits, with rtol=0."""
    spread: float = 0.0
    """Standard deviation of expected; its root mean square where it is constant."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with the comparison."""
        return self.exempt is not None or not (self.passes or self.uncorrelated)

    @property
    def uncorrelated(self) -> bool:
        """Whether the result that passed does not correlate with the expected one."""
        return self.correlation is not None and self.correlation < LEAST_CORRELATION


def judge(actual: Any, expected: Any, rtol: float, atol: float, *, eps: float = 0.0) -> Judgement:
    """Judge a comparison that passed.

    `actual`, `expected`: arrays of float, complex, integer or boolean values that broadcast against each other; rows
    are the last axis. `eps`: rounding of the coarser dtype that the values had before they became these arrays, where
    it is coarser than theirs.
    """
    if rtol == 0 and atol == 0:
        return Judgement(exempt=EXACT)
    try:
        a, x = np.broadcast_arrays(np.asarray(actual), np.asarray(expected))
    except ValueError:
        return Judgement(exempt=UNREADABLE)
    if all(each.dtype.kind in "iub" for each in (a, x)):
        return Judgement(exempt=INTEGERS)
    if any(each.dtype.kind not in "fciub" for each in (a, x)):
        return Judgement(exempt=UNREADABLE)
    eps = max([eps, *(float(np.finfo(each.dtype).eps) for each in (a, x) if each.dtype.kind in "fc")])
    a, x = _reals(a), _reals(x)
    finite = np.isfinite(a) & np.isfinite(x)
    if np.count_nonzero(finite) < FEWEST:
        return Judgement(exempt=SMALL)
    known = x[finite]
    largest = float(np.abs(known).max())
    if largest == 0:
        return Judgement(exempt=CONSTANT)
    deviation = float(known.std())
    varies = deviation > ROUNDINGS * eps * largest
    spread = deviation if varies else float(np.sqrt(np.square(known).mean()))
    return Judgement(
        passes=_passing(x, finite, rtol, atol, varies),
        correlation=correlation(a[finite], known) if varies else None,
        widest=_rounded_down(SOUND_SHARE * spread),
        spread=spread,
    )


def correlation(a: Any, x: Any) -> float:
    """Return Pearson's correlation of two arrays of one size; 0 where one of them is constant."""
    a, x = a - a.mean(), x - x.mean()
    sizes = float(np.sqrt(np.square(a).sum()) * np.sqrt(np.square(x).sum()))
    return float((a * x).sum() / sizes) if sizes else 0.0


def _rounded_down(value: float) -> float:
    """Return the first two digits of a positive number, the rest cut off."""
    unit = math.floor(math.log10(value)) - 1
    return float(f"{math.floor(value / 10.0**unit)}e{unit}")


def _reals(values: Any) -> Any:
    """Return values as float64, complex numbers as two of them, at least one axis."""
    if values.dtype.kind == "c":
        wide = np.ascontiguousarray(values.astype(np.complex128))
        return np.atleast_1d(wide)[..., None].view(np.float64).reshape(*wide.shape[:-1], -1)
    return np.atleast_1d(values.astype(np.float64))


def _passing(x: Any, finite: Any, rtol: float, atol: float, varies: bool) -> tuple[str, ...]:
    """Return the substitutes of `x` that are wrong and within the tolerance at every finite element."""
    filled = np.where(finite, x, 0.0)
    tries = {ZEROS: np.zeros_like(filled)}
    if varies:
        tries[MEAN] = np.full_like(filled, float(x[finite].mean()))
        rows = filled.reshape(-1, filled.shape[-1]) if filled.ndim > 1 else filled.reshape(-1, 1)
        if len(rows) > 1:
            if filled.ndim > 1:
                tries[MEAN_ROW] = np.broadcast_to(rows.mean(0), rows.shape).reshape(filled.shape)
            tries[SHUFFLED] = np.roll(rows, len(rows) // 2, axis=0).reshape(filled.shape)
    allowed = atol + rtol * np.abs(filled)
    return tuple(
        name
        for name, other in tries.items()
        if bool((np.abs(other - filled) <= allowed)[finite].all())
        and (name == ZEROS or correlation(other[finite], x[finite]) < LEAST_CORRELATION)
    )
