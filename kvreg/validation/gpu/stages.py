"""The stages of `ci/gpu` in their order; each is a function of a `Rig` that returns its status and one line about it.

One module a group of stages; a further stage is a function there and a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from kvreg.validation.gpu import benching, enduring, judging, recording, repeating, times, tuning
from kvreg.validation.gpu.rig import Rig

STAGES: dict[str, Callable[[Rig], tuple[str, str]]] = {
    "probe": judging.probe,
    "compile": judging.build,
    "gate": judging.gate,
    "seeds": judging.seeds,
    "determinism": repeating.determinism,
    "interchange": repeating.interchange,
    "robust": enduring.robust,
    "timings": times.timings,
    "bench": benching.bench,
    "step": benching.step,
    "host": benching.host,
    "pays": benching.pays,
    "tune": tuning.tune,
    "space": tuning.space,
    "traces": recording.traces,
}
EXTRA = ("step", "host", "pays", "tune", "space")
"""Stages that run only when they are named: a model's step, which holds 80 GB, host times, which want a quiet host,
minutes of a sweep, half an hour for one kernel's launch parameters; they validate nothing."""
USUAL = tuple(name for name in STAGES if name not in EXTRA)
