"""The stage `bench` of `ci/gpu`: times at the shapes that models run, beside the kernels of others.

The same rows as `kvreg bench`, for every variant that fits, since the evidence may be what this very call is making.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvreg.bench import driver, shapes, subjects
from kvreg.bench.subjects import DEFAULT_MODES
from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import FAILED, OK, SKIPPED
from kvreg.validation.journal import key_of

LIMIT_S = 300.0
"""Compiling on few cores takes the most of it; measuring about two minutes."""


def bench(rig: Rig) -> tuple[str, str]:
    """Measure every shape of the table."""
    if rig.machine.numerics == "interpreter" or not (rig.machine.is_card or rig.options.smoke):
        return SKIPPED, "no card"
    planned = [
        subjects.plan(shape, rig.machine.device, DEFAULT_MODES, every=True, vllm=rig.peer() is not None)
        for shape in (shapes.SMOKE if rig.options.smoke else shapes.CARD)
        if not rig.options.head_sizes or shape.head_size in rig.options.head_sizes
    ]
    with rig.limited(LIMIT_S):
        found = driver.Driver(
            rig.machine.device.key,
            rig.machine.place,
            rig.peer(),
            rig.run.outcomes,
            rig.run.require_device,
            rig.session,
            _Kept(rig),
        ).run(planned)
    rig.session.results["bench"] = found.to_json()
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
