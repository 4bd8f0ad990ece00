"""Which config the model of costs stands for: of compiled ones here, and of those that a recording holds.

A recording that knows the machine code of its kernels shows what the model would have cost on the card that it was
made on: its choice against the best that was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg_triton.cross import verdicts
from kvreg_triton.cross.compilations import Compiled
from kvreg_tuning import costs
from kvreg_tuning.costs import LEAST_GAIN, Cost
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.recording import Recording
from kvreg_tuning.spaces import Space
from kvreg_tuning.subjects import Config, Subject, text_of

CODE = {"code_bytes", "tile_instructions"}
"""Figures of which one tells the length of a kernel's code."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model says of one bucket."""

    subject: Subject
    bucket: Bucket
    default: Trial
    winner: Trial | None
    """None when no config compiled to something that could run."""
    costs: Mapping[str, Cost]
    """By the config's text."""
    counts: Mapping[str, int]
    """Configs by result."""
    cut_off: bool
    """Whether the budget ended the compiling before every config had its turn."""

    @property
    def improvement(self) -> float:
        """Part of the default's estimate that the winner saves."""
        if self.winner is None or self.winner.us is None or not self.default.us:
            return 0.0
        return 1.0 - self.winner.us / self.default.us


def choose(
    subject: Subject,
    bucket: Bucket,
    trials: Sequence[Trial],
    default: Config,
    found: Mapping[str, Cost],
    pruned: int,
    cut_off: bool,
) -> Estimate:
    """Choose the default unless something sound is estimated LEAST_GAIN faster; what spills only where all do.

    Where the compiler does not tell the length of the code, the part that binds today's kernels is missing: a default
    that can run is kept then.
    """
    base = next(each for each in trials if each.config == default)
    sound = [each for each in trials if each.result == "ok"]
    usable = sound or [each for each in trials if each.us is not None]
    winner = min(usable, key=lambda each: each.us or math.inf, default=None)
    if winner is not None and base in usable and winner.us and base.us:
        blind = found[text_of(winner.config)].issue_us is None
        if blind or winner.us > base.us * (1.0 - LEAST_GAIN):
            winner = base
    counts = Counter(str(each.result) for each in trials)
    if pruned:
        counts["constraint"] = pruned
    return Estimate(subject, bucket, base, winner, found, counts, cut_off)


def of_recording(recorded: Recording, space: Space, device: Device) -> list[Estimate]:
    """Return what the model chooses in each bucket of a recorded space, by its compiled kernels and no time of them.

    Empty where the recording does not know their machine code: the model would keep every default there.
    """
    estimates = []
    for bucket in space.buckets:
        trials = [recorded.trials[space.subject, str(bucket), text_of(config)] for config in space.candidates.configs]
        estimated, found = [], {}
        if not all(CODE & trial.resources.keys() for trial in trials):
            return []
        for trial in trials:
            cost = costs.cost(space.subject, bucket, trial.config, _splits(trial), trial.resources, device)
            if cost.issue_us is None:
                return []
            found[text_of(trial.config)] = cost
            compiled = Compiled("ok", trial.compile_s, trial.resources)
            limits = verdicts.Limits(device.arch, device.shared_per_block_max_bytes)
            faults = verdicts.faults("kernel", compiled, limits, matrix=False)
            estimated.append(replace(trial, result="resource" if faults else "ok", us=cost.us))
        default = space.candidates.configs[0]
        estimates.append(choose(space.subject, bucket, estimated, default, found, 0, False))
    return estimates


def _splits(trial: Trial) -> int:
    """Return into how many parts a recorded launch cut each context: its text ends so where they are several."""
    _, _, count = trial.launch.rpartition("splits=")
    return int(count) if "splits=" in trial.launch else 1
