"""`kvreg validate --compile`: what an arch's compiler makes of the kernels, for cards that are not there."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.cli import extras, progress, render
from kvreg.cli.asked import chosen
from kvreg.core import installed, registry, resolve
from kvreg.core.environment import Environment
from kvreg.core.errors import Refused, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.core.backends import Backend
    from kvreg.core.devices import Device
    from kvreg.core.variants import Variant
    from kvreg.validation.cross import CrossRun, Recorder, Result

REFUSED = Refused.exit_code


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line said."""

    devices: tuple[str, ...]
    modes: tuple[str, ...]
    head_sizes: tuple[int, ...]
    names: tuple[str, ...]
    target: str
    jobs: int | None
    timeout_s: float | None
    as_json: bool


def run(asked: Asked, settings: Environment) -> int:
    """Compile for each device's arch, record what is sound, and answer.

    3 when the figures refuse something, and when no variant takes what was asked for.
    """
    # A shell may have turned the interpreter on, under which nothing is compiled; the numerics' workers turn it on.
    os.environ["TRITON_INTERPRET"] = "0"
    # Words first: they are wrong or right whatever is installed here.
    named = [resolve.resolve(name).device for name in asked.devices or _default(settings)]
    with extras.kernels("validate --compile"):
        from kvreg.validation import cross

    devices = {(found := cross.arch_device(device)).key: found for device in named}
    with progress.view() as view:
        answers = [(device, *_one(asked, settings, device, view)) for device in devices.values()]
    versions = answers[0][2]
    if asked.as_json:
        archs = [_document(device, results) for device, results, _ in answers]
        render.document({"schema": 1, "versions": dict(versions), "archs": archs})
    else:
        for device, results, _ in answers:
            _show(device, results, versions)
    statuses = {each.status for _, results, _ in answers for each in results}
    return REFUSED if "refused" in statuses or statuses == {"unsupported"} else 0


def _default(settings: Environment) -> tuple[str, ...]:
    if settings.device is None:
        raise UsageError(
            wrong(
                "validate --compile",
                required="--device or --arch: the card need not be here",
                found="neither, and no KVREG_DEVICE",
                remedy="name one, such as --device mi300x or --arch gfx942",
            )
        )
    return (settings.device,)


def _one(asked: Asked, settings: Environment, device: Device, view: Any) -> tuple[list[Result], Mapping[str, Any]]:
    """Return the results of one arch and the versions they were had with."""
    # pydantic, torch and Triton: seconds, which the other commands do not pay
    from kvreg.validation import cross, numerics

    backend = _backend(device)
    # What the interpreter cannot run has no numerics without a card, whatever its compiler says.
    offered = [each for each in backend.variants() if each.family == "triton" and not each.needs_card]
    variants = chosen(offered, asked.modes, asked.names)
    sizes = tuple(dict.fromkeys(asked.head_sizes)) or cross.HEAD_SIZES
    subjects = [cross.Subject(variant, size) for variant in variants for size in sizes]
    folders = {each.id: _folder(backend, settings.home, asked.target) for each in variants}
    command, began = shlex.join(["kvreg", *sys.argv[1:]]), datetime.now(UTC)
    running = _compilation(asked, settings, device, backend, view)
    results = running.compile(subjects)

    prover = numerics.Prover(device, settings.home, folders, command, asked.jobs or os.cpu_count() or 1, view)
    sound = [(each.subject.variant, each.subject.head_size) for each in results if each.status == "compiled"]
    bases, failed = prover.prove(sound)
    for verdict in failed:
        view.note(f"numerics of {verdict.variant.id} d{verdict.head_size}: {verdict.status}")
    versions = {**_versions(), "triton": running.compiler.triton}
    recorder = _recorder(running, command, versions, began, folders)
    if asked.target == "repo":
        _keep_choices(backend, device, results, recorder)
    results = [_as_launched(running, each) for each in results]
    by_subject = {cross.Subject(variant, size): basis for (variant, size), basis in bases.items()}
    return recorder.write(results, by_subject), versions


def _backend(device: Device) -> Backend:
    from kvreg.validation.compilers import READS

    if device.platform not in READS:
        raise Refused(
            wrong(
                f"compile for {device.key}",
                required="a platform that a Triton compiles for: cuda, rocm or xpu",
                found=device.platform,
                remedy="run `kvreg validate` where such a device is",
            )
        )
    return next(each for each in registry.backends() if each.platform == device.platform)


def _compilation(asked: Asked, settings: Environment, device: Device, backend: Backend, view: Any) -> CrossRun:
    from dataclasses import replace

    from kvreg.validation.compilers import compiler_of
    from kvreg.validation.cross import CrossRun
    from kvreg_triton.cross.compilations import TIMEOUT_S

    compiler, target = compiler_of(device, settings.home)
    compiler = replace(
        compiler,
        cache=settings.home / "cache" / "compiled",
        jobs=asked.jobs or os.cpu_count() or 1,
        timeout_s=asked.timeout_s or TIMEOUT_S,
    )
    return CrossRun(device, backend, compiler, target, view)


def _versions() -> dict[str, str | None]:
    import platform

    from kvreg.validation.machine import kvreg_version

    found = installed.versions(("torch", "triton"))
    python = platform.python_version()
    named = {"kvreg": kvreg_version(), "python": python, "torch": found.get("torch"), "triton": found.get("triton")}
    return {**named, "driver": None, "card": None}


def _folder(backend: Backend, home: Path, target: str) -> Path:
    from kvreg.validation.machine import in_checkout

    return home / "evidence" if target == "overlay" else in_checkout(backend.evidence_dir)


def _recorder(
    running: CrossRun, command: str, versions: Mapping[str, Any], began: datetime, folders: Mapping[Any, Path]
) -> Recorder:
    from kvreg.core.index import Index
    from kvreg.core.lookup import Lookup
    from kvreg.validation.cross import Recorder
    from kvreg.validation.numerics import hash_of

    index = Index.open()

    def measured(variant: Variant, head_size: int) -> str | None:
        lookup = Lookup(index, running.device, head_size)
        for record in lookup.records(running.backend, variant.mode):
            found = record.evidence
            same = (found.variant, found.kernel_hash) == (str(variant.id), hash_of(variant))
            if same and found.build == "device":
                return found.trace
        return None

    return Recorder(running, command, versions, began, lambda variant: folders[variant.id], measured)


def _keep_choices(backend: Backend, device: Device, results: Sequence[Result], recorder: Recorder) -> None:
    """Write the parameters that were taken into the platform's launch.json, but for what a card has measured."""
    from kvreg.validation.cross import choices
    from kvreg_triton import defaults

    open_ones = [each for each in results if recorder.measured(each.subject.variant, each.subject.head_size) is None]
    taken = choices(open_ones, device.arch)
    if taken:
        defaults.record(backend.device_file.with_name(defaults.FILE), taken)


def _as_launched(running: CrossRun, result: Result) -> Result:
    """Return a result as `kept` where select would launch other parameters than those that are sound."""
    from dataclasses import replace

    subject, taken = result.subject, result.choice.taken
    if taken is None:
        return result
    launched = subject.variant.default_config(running.device, running.request(subject))
    if dict(launched) == dict(taken.config):
        return result
    words = " ".join(f"{name}={value}" for name, value in taken.config.items())
    reason = f"sound with {words}, which is not the arch's default: run it from a checkout with --write repo"
    return replace(result, status="kept", reason=reason)


def _show(device: Device, results: Sequence[Result], versions: Mapping[str, Any]) -> None:
    limit = device.shared_per_block_max_bytes
    shared = f"{limit} bytes of shared memory a block" if limit else "shared memory a block unknown"
    render.line(f"{device.arch}: compiled by Triton {versions['triton']}, never run; {shared}")
    render.line()
    columns = ("variant", "head", "launch parameters", "registers, spilled", "shared", "matrix unit", "result")
    rows = [_row(each) for each in results if each.status != "unsupported"]
    if rows:
        render.table(columns, rows)
    for each in results:
        if each.status == "unsupported":
            render.line(f"{each.subject}: not compiled: {each.reason}")
        for fault in each.choice.faults:
            render.line(f"{each.subject}: {fault}")
        if each.choice.note is not None:
            render.line(f"{each.subject}: {each.choice.note}")
        if each.status == "kept":
            render.line(f"{each.subject}: {each.reason}")
    written = [(str(each.trace.parent), each.trace_id) for each in results if each.trace is not None]
    render.line()
    if written:
        render.line(f"{len(written)} traces in {os.path.commonpath([folder for folder, _ in written])}")
        render.line(f"kvreg evidence show {written[0][1]}")
    else:
        render.line("no trace was written")


def _row(result: Result) -> tuple[object, ...]:
    figures = result.resources
    config = (result.choice.taken or result.tried[0]).config
    spilled = figures.get("spill_bytes")
    registers = f"{render.text(figures.get('registers'))}, {render.text(spilled)}{'' if spilled is None else ' bytes'}"
    return (
        result.subject.variant.id,
        result.subject.head_size,
        " ".join(f"{name}={value}" for name, value in config.items()),
        registers,
        figures.get("shared_bytes"),
        figures.get("matrix_instruction") or "-",
        result.status,
    )


def _document(device: Device, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "device": device.key,
        "arch": device.arch,
        "shared_bytes_limit": device.shared_per_block_max_bytes,
        "results": [_result(each) for each in results],
    }


def _result(result: Result) -> dict[str, Any]:
    variant = result.subject.variant
    return {
        "variant": str(variant.id),
        "op": variant.op.value,
        "mode": variant.mode.value,
        "head_size": result.subject.head_size,
        "status": result.status,
        "reason": result.reason,
        "note": result.choice.note,
        "config": dict(result.choice.taken.config) if result.choice.taken else None,
        "resources": result.resources,
        "refusals": [each.to_json() for each in result.choice.faults],
        "tried": [
            {
                "config": dict(each.config),
                "faults": [fault.to_json() for fault in each.faults],
                "compiled": {form: asdict(one) for form, one in each.compiled.items()},
            }
            for each in result.tried
        ],
        "trace": result.trace_id,
        "file": str(result.trace) if result.trace else None,
    }
