"""The stages `bench` and `pays` of `ci/gpu`: times at the shapes that models run, beside the kernels of others.

The same rows as `kvreg bench`, for every variant that fits, since the evidence may be what this very call is making.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.bench import driver, shapes, subjects
from kvreg.bench import pays as sweep
from kvreg.bench.results import Results
from kvreg.bench.shapes import Shape
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
        subjects.plan(shape, rig.machine.device, DEFAULT_MODES, every=True, vllm=rig.peer() is not None)
        for shape in (shapes.SMOKE if rig.options.smoke else shapes.CARD)
        if not rig.options.head_sizes or shape.head_size in rig.options.head_sizes
    ]
    with rig.limited(LIMIT_S):
        found = _driver(rig).run(planned)
    rig.session.results["bench"] = found.to_json()
    return _verdict(planned, found)


def pays(rig: Rig) -> tuple[str, str]:
    """Find from which context on int4 decodes faster than bf16."""
    if not _has_times(rig):
        return SKIPPED, "no card"
    modes = (Mode.INT4_PER_TOKEN_HEAD,)
    shapes_ = sweep.sweep(sweep.HEADS[:1], (1,), (64, 256)) if rig.options.smoke else _whole_sweep()
    planned = [
        sweep.plan(shape, rig.machine.device, modes, every=True, vllm=rig.peer() is not None) for shape in shapes_
    ]
    found = _driver(rig).run(planned, modes)
    rig.session.results["pays"] = [each.to_json() for each in sweep.answers(found.shapes, modes)]
    return _verdict(planned, found)


def _whole_sweep() -> Iterator[Shape]:
    return sweep.sweep(sweep.HEADS, sweep.BATCHES, sweep.CONTEXTS)


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
    return (FAILED if bad else OK), "; ".join([f"{timed} of {due} kernels timed", *bad[:4]])


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
