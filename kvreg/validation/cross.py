"""Validating an arch without a card: what its compiler makes of every launch, judged, and recorded as a trace.

For each variant and head size the platform's launch parameters are compiled in their order until some are sound
(kvreg_triton.cross.verdicts), which become the arch's default. Numerics are those of Triton's interpreter
(kvreg.validation.numerics), which are the same for every arch. A trace holds every compilation with its
specialization, so that any figure in it can be had again from the compiler; where nothing is sound it says why.

One trace serves every card of the arch: shared memory and registers are the arch's, and so is the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from kvreg.core import constraints, device_files, traces
from kvreg.core.backends import Backend
from kvreg.core.devices import ARCH_PREFIX, Device
from kvreg.core.errors import BadFile
from kvreg.core.layouts import default
from kvreg.core.modes import Mode
from kvreg.core.requests import FEATURES, Op, Request
from kvreg.core.variants import Variant
from kvreg.validation.numerics import Basis, hash_of
from kvreg_triton.cross import readings, verdicts
from kvreg_triton.cross.compilations import Compiled, Compiler
from kvreg_triton.cross.launches import Launch, launches
from kvreg_triton.cross.specializations import Target
from kvreg_triton.cross.verdicts import Choice, Fault, Limits, Tried

HEAD_SIZES = (64, 96, 128, 256)
"""Head sizes compiled when none is named: a padded width each, and 96 for what is masked."""

COMPILED_FEATURES = ("causal", "multi_query_split")
"""Feature words that the compiled launches cover: several query rows of a decode are the same kernel."""

Status = Literal["compiled", "refused", "unsupported", "kept"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant at one head size."""

    variant: Variant
    head_size: int

    def __str__(self) -> str:
        return f"{self.variant.id} d{self.head_size}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one subject on the arch."""

    subject: Subject
    status: Status
    """unsupported: the variant takes no such request, so nothing was compiled; kept: something stronger is there."""
    choice: Choice = field(default_factory=lambda: Choice(None))
    tried: tuple[Tried, ...] = ()
    reason: str | None = None
    """Of an unsupported or kept one."""
    trace: Path | None = None
    trace_id: str | None = None

    @property
    def resources(self) -> dict[str, Any]:
        """The figures of what was taken, or of the first parameters where nothing was."""
        shown = self.choice.taken or (self.tried[0] if self.tried else None)
        readings_of = {form: each.reading for form, each in shown.compiled.items() if each.reading} if shown else {}
        return readings.worst({form: dict(one) for form, one in readings_of.items()}) if readings_of else {}


class View:
    """What a run tells whoever watches; shows nothing itself."""

    def stage(self, name: str, total: int, done: int) -> None:
        """Say that a stage begins."""

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Say that one compilation is finished."""


def arch_device(device: Device) -> Device:
    """Return the device that stands for every card of `device`'s arch."""
    if device.is_arch:
        return device
    key = f"{ARCH_PREFIX}{device.arch}"
    return next((each for each in device_files.devices() if each.key == key), device)


@dataclass(slots=True)
class CrossRun:
    """The compilation of several subjects for one arch."""

    device: Device
    """An arch device."""
    backend: Backend
    compiler: Compiler
    """Its `source` is replaced by each variant's kernel hash."""
    target: Target
    view: Any = field(default_factory=View)

    @property
    def limits(self) -> Limits:
        """The arch's limits."""
        return Limits(self.device.arch, self.device.shared_per_block_max_bytes)

    def compile(self, subjects: Sequence[Subject]) -> list[Result]:
        """Compile every subject, parameters after parameters, until some are sound or none are left."""
        tried: dict[Subject, list[Tried]] = {each: [] for each in subjects}
        unsupported = {each: reason for each in subjects if (reason := self._unsupported(each)) is not None}
        orders = {each: list(self.order(each)) for each in subjects if each not in unsupported}
        while waiting := {each: order.pop(0) for each, order in orders.items() if order and _open(tried[each])}:
            for subject, attempt in self._attempts(waiting):
                tried[subject].append(attempt)
        return [self._result(each, tried[each], unsupported.get(each)) for each in subjects]

    def request(self, subject: Subject) -> Request:
        """Return the request that is compiled for: select's own assumptions."""
        return Request(
            device=self.device.key,
            mode=subject.variant.mode,
            head_size=subject.head_size,
            layout=default(subject.variant.mode),
        )

    def order(self, subject: Subject) -> Sequence[Mapping[str, int]]:
        """Return the launch parameters in the order in which they are tried."""
        request, variant = self.request(subject), subject.variant
        if variant.candidates is None:
            return (variant.default_config(self.device, request),)
        return variant.candidates(self.device, request)

    def _unsupported(self, subject: Subject) -> str | None:
        reasons = constraints.failed(subject.variant, self.request(subject), self.device)
        return str(reasons[0]) if reasons else None

    def _attempts(self, waiting: Mapping[Subject, Mapping[str, int]]) -> Iterator[tuple[Subject, Tried]]:
        work: list[tuple[Subject, Launch]] = []
        optional: dict[Subject, tuple[Fault, ...]] = {}
        for subject, config in waiting.items():
            made = launches(subject.variant, self.device, self.request(subject), config, self.target)
            lines = {line for each in made for line in self.backend.validate_options(each.specialization.options)}
            optional[subject] = verdicts.option_faults(sorted(lines))
            if not optional[subject]:  # what Triton would drop or turn into something else is not compiled
                work += [(subject, each) for each in made]
        results: dict[Subject, dict[str, tuple[Launch, Compiled]]] = {each: {} for each in waiting}
        for (subject, launch), result in self._compiled(work):
            results[subject][launch.form] = (launch, result)
        for subject, config in waiting.items():
            faults = list(optional[subject])
            for form, (launch, result) in sorted(results[subject].items()):
                declares = subject.variant.matrix_instruction and not launch.reduces
                faults += verdicts.faults(form, result, self.limits, matrix=declares)
            forms = dict(sorted(results[subject].items()))
            compiled = {form: result for form, (_, result) in forms.items()}
            made_of = {form: launch.specialization for form, (launch, _) in forms.items()}
            yield subject, Tried(dict(config), compiled, tuple(faults), made_of)

    def _compiled(self, work: Sequence[tuple[Subject, Launch]]) -> Iterator[tuple[tuple[Subject, Launch], Compiled]]:
        self.view.stage(f"compile {self.device.arch}", len(work), 0)
        sources = [hash_of(subject.variant) for subject, _ in work]
        specializations = [launch.specialization for _, launch in work]
        for index, result in self.compiler.run(specializations, sources):
            subject, launch = work[index]
            self.view.advance(f"{subject} {launch.form}", {"status": result.status, "error": result.error})
            yield work[index], result

    def _result(self, subject: Subject, tried: Sequence[Tried], unsupported: str | None) -> Result:
        if unsupported is not None:
            return Result(subject, "unsupported", reason=unsupported)
        choice = verdicts.choose(tried)
        return Result(subject, "compiled" if choice.taken else "refused", choice, tuple(tried))


def _open(tried: Sequence[Tried]) -> bool:
    return not any(not each.faults for each in tried)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes the results of one run as traces."""

    run: CrossRun
    command: str
    versions: Mapping[str, str | None]
    began: datetime
    folder: Callable[[Variant], Path]
    """Evidence folder of a variant."""
    measured: Callable[[Variant, int], str | None]
    """Id of a measured trace of the present kernel on a card of the arch, which is stronger; None without one."""

    def write(self, results: Iterable[Result], bases: Mapping[Subject, Basis]) -> list[Result]:
        """Write a trace for each compiled or refused subject that nothing stronger speaks for."""
        return [self._written(each, bases.get(each.subject)) for each in results]

    def _written(self, result: Result, basis: Basis | None) -> Result:
        variant, size = result.subject.variant, result.subject.head_size
        if result.status == "unsupported":
            return result
        stronger = self.measured(variant, size)
        if stronger is not None:
            return replace(result, status="kept", reason=f"{stronger} was measured on the arch and stays")
        if result.status == "compiled" and basis is None:
            return replace(result, status="kept", reason="its numerics have no record: the interpreter's run failed")
        device = self.run.device
        path = traces.trace_file(self.folder(variant), device.key, variant.mode, size, variant.op, str(variant.id))
        log = traces.write_log(self._lines(result), path)
        trace = traces.seal({**self._record(result, basis), "log": log.model_dump()})
        traces.write_trace(trace, path)
        return replace(result, trace=path, trace_id=trace.id)

    def _record(self, result: Result, basis: Basis | None) -> dict[str, Any]:
        variant, device = result.subject.variant, self.run.device
        taken = result.choice.taken
        proven = basis.trace if taken is not None and basis is not None else None
        covered = proven.features if proven is not None and proven.features is not None else []
        nothing = {"cells": 0, "sequences": 0, "seeds": 0, "limits": {}}
        return {
            "variant": str(variant.id),
            "op": variant.op.value,
            "mode": variant.mode.value,
            "head_size": result.subject.head_size,
            "platform": device.platform,
            "device": device.key,
            "arch": device.arch,
            "numerics": "interpreter" if proven is not None else "none",
            "build": "cross",
            "speed": "none",
            "accuracy": variant.accuracy,
            "kernel_hash": hash_of(variant),
            "command": self.command,
            "started": _utc(self.began),
            "ended": _utc(datetime.now(UTC)),
            "versions": dict(self.versions),
            "config": dict((taken or result.tried[0]).config),
            "layouts": [str(default(variant.mode))],
            "features": [word for word in FEATURES if word in covered and word in COMPILED_FEATURES],
            "gate": proven.gate.model_dump() if proven is not None else nothing,
            "seeds": [each.model_dump() for each in proven.seeds] if proven is not None else [],
            "classes": [],
            "resources": result.resources,
            "basis": {"id": proven.id, "digest": proven.digest} if proven is not None else None,
            "refusals": None if taken is not None else [each.to_json() for each in result.choice.faults],
        }

    def _lines(self, result: Result) -> Iterator[Mapping[str, Any]]:
        """Yield what was compiled: a line each, the specialization with it."""
        for tried in result.tried:
            for form, compiled in tried.compiled.items():
                yield {
                    "form": form,
                    "config": dict(tried.config),
                    "specialization": tried.specializations[form].to_json(),
                    **asdict(compiled),
                }


def choices(results: Iterable[Result], arch: str) -> dict[tuple[str, Mode, Op, int], Mapping[str, int]]:
    """Return what launch.json is to hold of the results: the parameters that were taken."""
    return {
        (arch, each.subject.variant.mode, each.subject.variant.op, each.subject.head_size): each.choice.taken.config
        for each in results
        if each.choice.taken is not None and each.status == "compiled" and each.subject.variant.candidates is not None
    }


def sound_trace(path: Path, kernel: str) -> traces.Trace | None:
    """Return the trace of a file where it is sound and of the kernel with this hash."""
    try:
        found = traces.read_trace(path)
    except (BadFile, OSError):
        return None
    return None if traces.problems(found, path) or found.kernel_hash != kernel else found


def _utc(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
