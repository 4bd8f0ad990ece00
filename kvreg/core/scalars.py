"""Numbers as callers hold them: Python's own, and the scalars of numpy and others that stand for one.

A sum of a numpy array is an np.int64, and a page count of a config may be one: each is a whole number, and becomes an
int at the door, since what is kept goes into JSON and into graphs. A bool is no number here.
"""

from __future__ import annotations

import math
import operator
from typing import Any

FLOAT32 = 2.0**-149, (2 - 2**-23) * 2.0**127
"""The least and the largest positive number that float32 holds, which kernels take host numbers as."""


def whole(value: Any) -> int | None:
    """Return a value with `__index__` as an int; None for anything else, a float and a bool among it."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError):  # ValueError: some arrays of several numbers
        return None


def real(value: Any) -> float | None:
    """Return a real number as a float, infinity for an int that is beyond every float; None for anything else."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, (int, float)):
        from numbers import Real  # a start of select, which counts only, does without

        if not isinstance(value, Real):
            return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
