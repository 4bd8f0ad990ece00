"""How much a run tries: one frozen record a level, and nowhere else a number of trials, samples or rounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kvreg.core.errors import UsageError, wrong

Strategy = Literal["random", "optuna", "exhaustive"]


@dataclass(frozen=True, slots=True)
class Effort:
    """One level of effort, for one variant and shape."""

    name: str
    strategy: Strategy
    trials: int | None
    """Configs that are tried beside the default; None tries every one."""
    batch: int
    """Configs that the search hands out before it sees a result; compiled side by side."""
    samples: int
    """Samples of one timing; a slow config gets a fifth of them."""
    finalists: int
    """Configs of a bucket that are raced against the default."""
    rounds: int
    """Interleaved rounds of that race."""
    seeds: int
    """Seeds of the gate, for each context and input."""
    timing_s: float
    """A timing ends after so many seconds, whatever samples it has; `LEAST_SAMPLES` are always taken."""
    race_s: float
    """The same of a race, for its rounds."""


EFFORTS = {
    each.name: each
    for each in (
        Effort("quick", "random", 16, 8, 10, 3, 30, 1, 1.0, 10.0),
        Effort("normal", "optuna", 96, 8, 20, 5, 40, 2, 2.0, 20.0),
        Effort("full", "exhaustive", None, 16, 20, 8, 60, 2, 4.0, 60.0),
    )
}
"""quick: minutes for a first answer. normal: what a card is tuned with. full: the whole space, as for a recording."""

LEAST_SAMPLES = 3
LEAST_ROUNDS = 9
"""Fewer give no usable spread; calls of a second on a busy host get no more."""

FINAL_SHARE = 0.25
"""Part of a budget that is kept for the races."""

SLOW_FACTOR = 3.0
"""A config this many times slower than the best of its bucket is out after a fifth of the samples."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Read a budget: 90s, 10m, 1.5h, or a number of seconds; raises UsageError for another form or none left."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if value <= 0:
        raise UsageError(
            wrong(
                "--budget",
                required="a time such as 90s, 10m, 1.5h or 90 (seconds)",
                found=repr(text),
                remedy="name one",
            )
        )
    return value
