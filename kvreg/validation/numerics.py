"""The numerics of kernels that no card has run: one run of Triton's interpreter, which every cross build rests on.

The interpreter computes in fp32 and knows no arch, so its result holds for all of them; it proves indices, masks and
algebra, never rounding or resources. The records lie in the evidence folder as any other, below the made-up device
`interpreter`, or `interpreter-e4m3fnuz` where the stored format is the one of gfx94x. select takes none of them: a
cross build names the one it rests on by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvreg.core import registry, traces
from kvreg.core.devices import Device
from kvreg.core.formats import E4M3FNUZ, fp8_type
from kvreg.core.kernelhash import kernel_hash
from kvreg.core.modes import Mode
from kvreg.core.variants import Variant
from kvreg.validation import records
from kvreg.validation.calls import config_of
from kvreg.validation.cells import PROFILES, work_list
from kvreg.validation.journal import Journal
from kvreg.validation.machine import machine_for
from kvreg.validation.run import Run, Silent, Verdict

INTERPRETER = "interpreter"

hash_of = cache(kernel_hash)
"""A variant's kernel hash, computed once a process: half a second each."""

Pair = tuple[Variant, int]
"""A variant and a head size."""


@dataclass(frozen=True, slots=True)
class Basis:
    """A sound record of the present kernel's numerics."""

    trace: traces.Trace
    file: Path


def interpreter_key(device: Device, mode: Mode) -> str:
    """Return the made-up device that a mode's numerics on `device` are recorded below."""
    fnuz = mode.is_fp8 and fp8_type(device) == E4M3FNUZ
    return f"{INTERPRETER}-{E4M3FNUZ}" if fnuz else INTERPRETER


def roots(home: Path) -> tuple[Path, ...]:
    """Return the evidence folders in which a record counts: the overlay's, and those of every platform."""
    return (home / "evidence", *dict.fromkeys(backend.evidence_dir for backend in registry.backends()))


def find(device: Device, variant: Variant, head_size: int, home: Path) -> Basis | None:
    """Return the record of a variant's numerics wherever it lies; None where there is none of the present kernel."""
    key, known = interpreter_key(device, variant.mode), hash_of(variant)
    for root in roots(home):
        path = traces.trace_file(root, key, variant.mode, head_size, variant.op, str(variant.id))
        if not path.is_file():
            continue
        trace = traces.read_trace(path)
        if trace.kernel_hash == known and not traces.problems(trace, path):
            return Basis(trace, path)
    return None


@dataclass(frozen=True, slots=True)
class Prover:
    """Runs the interpreter for what has no record, and records it."""

    device: Device
    home: Path
    folders: Mapping[Any, Path]
    """Variant id -> evidence folder that new records go to."""
    command: str
    jobs: int = 1
    view: Any = None

    def prove(self, pairs: Sequence[Pair]) -> tuple[dict[Pair, Basis], list[Verdict]]:
        """Return the record of each pair that has one now, and the verdicts of those whose cells did not all pass."""
        known = {pair: found for pair in pairs if (found := find(self.device, *pair, self.home)) is not None}
        missing = [pair for pair in pairs if pair not in known]
        if not missing:
            return known, []
        failed = []
        path = self.home / "cache" / f"{INTERPRETER}.jsonl"
        with Journal(path) as journal:
            run = self._run(missing, journal)
            run.probe()
            run.judge()
            for verdict in run.verdicts():
                if verdict.status == "passed":
                    basis = self._record(run, verdict)
                    known[_pair(missing, verdict)] = basis
                else:
                    failed.append(verdict)
        return known, failed

    def _run(self, pairs: Iterable[Pair], journal: Journal) -> Run:
        cells = [
            cell for variant, size in pairs for cell in work_list([variant], [size], PROFILES["interpreter-cross"])
        ]
        cells.sort(key=lambda cell: (cell.mode, cell.head_size, cell.kind == "write", cell.rows, cell.layout))
        return Run(
            machine=machine_for(self.device.key, interpreter=True),
            variants=tuple({str(variant.id): variant for variant, _ in pairs}.values()),
            cells=tuple(cells),
            journal=journal,
            command=self.command,
            view=self.view or Silent(),
            jobs=self.jobs,
        )

    def _record(self, run: Run, verdict: Verdict) -> Basis:
        variant, size = verdict.variant, verdict.head_size
        key = interpreter_key(self.device, variant.mode)
        machine = replace(run.machine, device=replace(self.device, key=key, arch=INTERPRETER))
        path = traces.trace_file(self.folders[variant.id], key, variant.mode, size, variant.op, str(variant.id))
        found = records.record(
            variant,
            size,
            verdict.lines,
            machine,
            kernel_hash=run.hashes[str(variant.id)],
            versions=run.versions,
            command=self.command,
        )
        # The launch parameters are those of the device that was asked for: an arch's rows and tiles.
        found["config"] = dict(config_of(variant, self.device, size))
        log = traces.write_log(verdict.lines, path)
        trace = traces.seal({**found, "log": log.model_dump()})
        traces.write_trace(trace, path)
        return Basis(trace, path)


def _pair(pairs: Iterable[Pair], verdict: Verdict) -> Pair:
    return next(
        (variant, size) for variant, size in pairs if (variant.id, size) == (verdict.variant.id, verdict.head_size)
    )
