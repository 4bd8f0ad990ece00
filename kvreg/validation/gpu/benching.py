"""The stages `bench`, `step`, `host` and `pays` of `ci/gpu`: times at the shapes that models run, beside others'.

The same rows as `kvreg bench`, for every variant that fits, since the evidence may be what this very call is making;
`step`, `host` and `pays` take what select answers alone, unless it refuses a mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from kvreg.bench import driver, shapes, subjects
from kvreg.bench import host as hosts
from kvreg.bench import pays as sweep
from kvreg.bench.results import Results
from kvreg.bench.shapes import Shape
from kvreg.bench.step import models, running
from kvreg.bench.step.shapes import BATCH, CONTEXT, StepShape
from kvreg.bench.step.shapes import plan as plan_step
from kvreg.bench.subjects import DEFAULT_MODES, Planned
from kvreg.core.modes import Mode
from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import FAILED, OK, SKIPPED
from kvreg.validation.journal import key_of

LIMIT_S = 300.0
"""Compiling on few cores takes the most of it; measuring about two minutes."""


def bench(rig: Rig) -> tuple[str, str]:
    """Measure every shape of the table."""
    if not _has_times(rig):
        return SKIPPED, "no card"
    planned = [
        _plan(rig, shape, True)
        for shape in (shapes.SMOKE if rig.options.smoke else shapes.CARD)
        if _is_wanted(rig, shape.head_size)
    ]
    with rig.limited(LIMIT_S):
        found = _driver(rig).run(planned)
    rig.session.results["bench"] = found.to_json()
    return _verdict(planned, found)


def step(rig: Rig) -> tuple[str, str]:
    """Time a whole decode step of Phi-3-mini with each kind of cache."""
    if not _has_times(rig):
        return SKIPPED, "no card"
    of = StepShape(models.BUILT_IN["phi3-mini"], BATCH, CONTEXT)
    if rig.options.smoke:
        of = StepShape(models.SMOKE, 2, 40)
    if not _is_wanted(rig, of.model.head_size):
        return SKIPPED, f"head size {of.model.head_size} was not asked for"
    planned = _answered(lambda every: plan_step(of, rig.machine.device, DEFAULT_MODES, every=every))
    with rig.limited(LIMIT_S):
        found = running.run(_driver(rig), of, planned, DEFAULT_MODES)
    rig.session.results["step"] = found.to_json()
    own = [row for row in found.rows if row.maker == "kvreg" and row.status != "refused"]
    return _line(
        [f"{row.kernel}: {row.status}: {row.detail}" for row in own if not row.is_timed],
        f"{sum(row.is_timed for row in found.rows)} of {len(planned.subjects)} steps timed",
    )


def host(rig: Rig) -> tuple[str, str]:
    """Time what the host takes for eager calls; every process that compiles has ended before."""
    if not _has_times(rig):
        return SKIPPED, "no card"
    table = hosts.SMOKE if rig.options.smoke else hosts.CARD
    planned = [_answered(partial(_plan, rig, shape)) for shape in table if _is_wanted(rig, shape.head_size)]
    with rig.limited(LIMIT_S):
        rows = hosts.run(_driver(rig), planned, DEFAULT_MODES)
    rig.session.results["host"] = [asdict(row) for row in rows]
    own = [row for row in rows if row.maker == "kvreg" and row.status not in ("ok", "refused")]
    return _line(
        [f"{row.shape}: {row.kernel}: {row.status}: {row.detail}" for row in own],
        f"{sum(row.us is not None for row in rows)} of {sum(len(each.subjects) for each in planned)} calls timed",
    )


def pays(rig: Rig) -> tuple[str, str]:
    """Find from which context on int4 decodes faster than bf16."""
    if not _has_times(rig):
        return SKIPPED, "no card"
    modes = (Mode.INT4_PER_TOKEN_HEAD,)
    heads = [each for each in sweep.HEADS if _is_wanted(rig, each.head_size)]
    points = sweep.sweep(heads[:1], (1,), (64, 256)) if rig.options.smoke else _whole_sweep(heads)
    planned = [_answered(partial(_plan_point, rig, modes, shape)) for shape in points]
    if not planned:
        return SKIPPED, f"of head sizes {', '.join(str(each.head_size) for each in sweep.HEADS)} none was asked for"
    found = _driver(rig).run(planned, modes)
    rig.session.results["pays"] = [each.to_json() for each in sweep.answers(found.shapes, modes)]
    rig.session.results["pays_points"] = found.to_json()
    return _verdict(planned, found)


def _plan(rig: Rig, shape: Shape, every: bool) -> Planned:
    return subjects.plan(shape, rig.machine.device, DEFAULT_MODES, every=every, vllm=rig.peer() is not None)


def _answered(plan: Callable[[bool], Planned]) -> Planned:
    """Return what select answers; where it refuses a mode, every variant that fits."""
    answered = plan(False)
    return plan(True) if answered.refusals else answered


def _whole_sweep(heads: Sequence[sweep.Heads]) -> Iterator[Shape]:
    return sweep.sweep(heads, sweep.BATCHES, sweep.CONTEXTS)


def _plan_point(rig: Rig, modes: Sequence[Mode], shape: Shape, every: bool) -> Planned:
    return sweep.plan(shape, rig.machine.device, modes, every=every, vllm=rig.peer() is not None)


def _is_wanted(rig: Rig, head_size: int) -> bool:
    return not rig.options.head_sizes or head_size in rig.options.head_sizes


def _has_times(rig: Rig) -> bool:
    return rig.machine.numerics != "interpreter" and (rig.machine.is_card or rig.options.smoke)


def _driver(rig: Rig) -> driver.Driver:
    return driver.Driver(
        rig.machine.device.key,
        rig.machine.place,
        rig.peer(),
        rig.run.outcomes,
        rig.run.require_device,
        rig.session,
        _Kept(rig),
    )


def _verdict(planned: Sequence[Planned], found: Results) -> tuple[str, str]:
    own = [row for row in found.rows() if row.maker == "kvreg"]
    bad = [f"{row.shape}: {row.kernel}: {row.status}: {row.detail}" for row in own if not row.is_timed]
    timed, due = sum(row.is_timed for row in found.rows()), sum(len(each.subjects) for each in planned)
    return _line(bad, f"{timed} of {due} kernels timed")


def _line(bad: Sequence[str], counted: str) -> tuple[str, str]:
    return (FAILED if bad else OK), "; ".join([counted, *bad[:4]])


@dataclass(frozen=True, slots=True)
class _Kept:
    """The session's journal, under keys that cover the kernels, the device and the versions."""

    rig: Rig

    def get(self, identity: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return what an earlier call has found."""
        line = self.rig.journal.get(self._key(identity))
        return None if line is None else list(line["value"])

    def keep(self, identity: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
        """Put a finding into the journal."""
        self.rig.journal.append(self._key(identity), {"status": "ok", "value": found, "stage": "bench"})

    def _key(self, identity: Mapping[str, Any]) -> str:
        run, named = self.rig.run, {str(each.id): each for each in self.rig.variants}
        names = [each["name"] for each in identity.get("subjects", ())]
        hashes = {name: run.hash_of(named[name]) for name in names if name in named}
        return key_of({**identity, "device": self.rig.machine.device.key, "hashes": hashes, **run.versions})
