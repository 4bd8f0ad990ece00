"""Trace files: the record of one validation, written by `kvreg validate` only, and how to tell an edited one.

    <evidence folder>/<device key, "/" and ":" as "_">/<mode>/d<head>-<op>-<variant name>.yaml     and, beside it,
    <the same>.jsonl.gz                                                        the raw log, one cell a line

`digest` covers everything in the file but itself and the id that is made from it; `log.sha256` covers the raw log's
bytes. A trace for which either is wrong is no evidence. pydantic and YAML are imported here: readers that must start
fast take the derived index instead. Longer than its neighbours: the schema, the seal and what checks it are one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, ValidationError

from kvreg.core import schema_faults, yaml_files
from kvreg.core.devices import folder_name
from kvreg.core.errors import BadFile, wrong
from kvreg.core.evidence import Build, Evidence, Numerics, Refusal, Speed, Timing
from kvreg.core.modes import Mode
from kvreg.core.requests import FEATURES, Op
from kvreg.core.shards import replace_file
from kvreg.core.variants import VariantId

Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Utc = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$")]
Feature = Annotated[str, StringConstraints(pattern=f"^({'|'.join(FEATURES)})$")]
Count = Annotated[int, Field(ge=0)]
Error = Annotated[FiniteFloat, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Worst(_Record):
    """Where the largest error was found."""

    group: int | None = None
    kind: str | None = None
    layout: str
    input: str
    context: int | None = None
    seed: int
    dtype: str | None = None
    """Of a class away from bf16 and pages of 16."""
    page: int | None = None
    features: str | None = None


class GateRecord(_Record):
    """What the gate saw over all cells, and the limits that it judged by."""

    cells: Count
    sequences: Count
    seeds: Count
    max_rel_error: Error | None = None
    """Scale-free relative error of attention outputs; None for a write."""
    min_cosine: FiniteFloat | None = None
    max_step_error: Error | None = None
    """Of a write: largest distance from the oracle's row, in quantization steps."""
    rotation_error: Error | None = None
    """Of a write: largest relative L2 error of a rotated row."""
    worst: Worst | None = None
    limits: dict[str, FiniteFloat]


class SeedRecord(_Record):
    """The worst of one seed."""

    seed: int
    max_rel_error: Error | None = None
    min_cosine: FiniteFloat | None = None
    max_step_error: Error | None = None
    rotation_error: Error | None = None


class ClassRecord(_Record):
    """The worst of one class of cells."""

    group: int | None = None
    kind: str | None = None
    layout: str
    input: str
    context: int | None = None
    dtype: str | None = None
    """Of a class away from bf16 and pages of 16."""
    page: int | None = None
    features: str | None = None
    """Of a class with features other than causal alone: their words, joined by +."""
    max_rel_error: Error | None = None
    min_cosine: FiniteFloat | None = None
    max_step_error: Error | None = None
    rotation_error: Error | None = None
    checks: dict[str, bool | int | FiniteFloat | str] = {}
    """Named checks of a write (untouched bytes, skipped slots, ...) and what they found."""


class TimingRecord(_Record):
    """One timed point; microseconds, medians."""

    batch: int
    context: int
    group: int
    us: Error
    spread: Error | None = None
    bf16_us: Error | None = None
    bf16_variant: str | None = None
    fraction_of_limit: Error | None = None


class RefusalRecord(_Record):
    """What the compiler's figures say against the kernel on the arch."""

    code: str
    field: str
    required: str
    found: str


class BasisRecord(_Record):
    """The trace whose numerics a cross build rests on: an interpreter's, which is the same for every arch."""

    id: str
    digest: Hex


class LogRecord(_Record):
    """The raw log beside the trace."""

    file: Annotated[str, StringConstraints(pattern=r"^[^/\\\\]+\.jsonl\.gz$")]
    sha256: Hex
    """Of the compressed file's bytes."""
    lines: Count


class Trace(_Record):
    """One validation of one variant, head size and mode on one device."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    id: str
    variant: str
    op: Op
    mode: Mode
    head_size: int
    platform: str
    device: str
    arch: str
    numerics: Numerics
    build: Build
    speed: Speed
    accuracy: str
    kernel_hash: Hex
    command: str
    """The exact command that made the trace."""
    started: Utc
    ended: Utc
    versions: dict[str, str | None]
    """kvreg, python, torch, triton, driver, card."""
    config: dict[str, int]
    layouts: list[str]
    features: list[Feature] | None = None
    """Feature words that the cells covered; None, in older traces, stands for causal attention alone."""
    gate: GateRecord
    seeds: list[SeedRecord]
    classes: list[ClassRecord]
    resources: dict[str, int | str | None] = {}
    """registers, spill_bytes, shared_bytes, matrix_instruction; None where unknown."""
    basis: BasisRecord | None = None
    """Of a cross build: where its gate's numbers and each class of them stand."""
    refusals: list[RefusalRecord] | None = None
    """Of a cross build that cannot serve the arch."""
    timings: list[TimingRecord] = []
    log: LogRecord
    digest: Hex


def trace_file(folder: Path, device: str, mode: Mode | str, head_size: int, op: Op | str, variant: str) -> Path:
    """Return where the trace of a variant (`name@version`) lies below an evidence folder."""
    name = VariantId.parse(variant).name
    return folder / folder_name(device) / str(mode) / f"d{head_size}-{op}-{name}.yaml"


def seal(record: Mapping[str, Any]) -> Trace:
    """Return the trace of a record that lacks `id` and `digest`; both are computed. Raises BadFile on a bad record."""
    blank = {**record, "schema": 1, "id": "", "digest": "0" * 64}
    trace = _parse(blank, "a new trace")
    computed = digest(trace)
    return trace.model_copy(update={"digest": computed, "id": trace_id(trace, computed)})


def digest(trace: Trace) -> str:
    """Return the sha256 of the canonical JSON of everything but `digest` and `id`."""
    rest = {name: value for name, value in _document(trace).items() if name not in ("digest", "id")}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def trace_id(trace: Trace, computed: str) -> str:
    """Return the id that a trace with this digest has."""
    return f"{folder_name(trace.device)}-{trace.mode}-d{trace.head_size}-{trace.op}-{computed[:8]}"


def read_trace(path: Path) -> Trace:
    """Return the trace of a file. Raises BadFile when it is no trace; see `problems` for an edited one."""
    return _parse(yaml_files.load(path), f"trace {path}")


def write_trace(trace: Trace, path: Path) -> None:
    """Write a sealed trace in one step; the log must lie beside it already. Raises BadFile for an unsealed one."""
    if trace.digest != digest(trace):
        raise BadFile(
            wrong(f"trace {trace.id}", required="its own digest", found=trace.digest, remedy="seal it first")
        )
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    record = _document(trace)
    # Hundreds of classes: a line each, without what does not apply to it (which a reader takes as its default).
    for name in ("seeds", "classes", "timings"):
        record[name] = [{k: v for k, v in each.items() if v is not None and v != {}} for each in record[name]]
    text = yaml.dump(record, Dumper=dumper, sort_keys=False, allow_unicode=True, width=200, default_flow_style=None)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def write_log(lines: Iterable[Mapping[str, Any]], trace: Path) -> LogRecord:
    """Write the raw log beside the trace file `trace` and return its record; equal lines give equal bytes."""
    path = log_file(trace)
    packed, count = io.BytesIO(), 0
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
        for line in lines:
            stream.write(json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n")
            count += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, packed.getvalue())
    return LogRecord(file=path.name, sha256=hashlib.sha256(packed.getvalue()).hexdigest(), lines=count)


def read_log(trace: Path) -> list[dict[str, Any]]:
    """Return the lines of the raw log beside the trace file `trace`. Raises BadFile when it is no such log."""
    path = log_file(trace)
    try:
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise BadFile(wrong(f"log {path}", required="gzip of JSON lines", found=str(error), remedy=_AGAIN)) from None


def log_file(trace: Path) -> Path:
    """Return where the raw log of the trace file `trace` lies."""
    return trace.with_name(f"{trace.stem}.jsonl.gz")


def problems(trace: Trace, path: Path) -> list[str]:
    """Return what shows that a trace or its log is not as it was written; empty for a sound one."""
    found = []
    computed = digest(trace)
    if trace.digest != computed:
        found.append(f"digest {trace.digest[:8]} is not the content's, {computed[:8]}")
    if trace.id != trace_id(trace, trace.digest):
        found.append(f"id {trace.id} is not {trace_id(trace, trace.digest)}, as its content says")
    place = trace_file(Path(), trace.device, trace.mode, trace.head_size, trace.op, trace.variant)
    if path.parts[-3:] != place.parts:
        found.append(f"a trace of {place} lies elsewhere")
    try:
        raw = (path.parent / trace.log.file).read_bytes()
    except OSError:
        return [*found, f"log {trace.log.file} is missing"]
    if hashlib.sha256(raw).hexdigest() != trace.log.sha256:
        found.append(f"log {trace.log.file} is not the one that was written (sha256)")
    return found


def to_evidence(trace: Trace) -> Evidence:
    """Return what select needs of a trace."""
    return Evidence(
        trace=trace.id,
        variant=trace.variant,
        op=trace.op,
        mode=trace.mode.value,
        head_size=trace.head_size,
        device=trace.device,
        arch=trace.arch,
        kernel_hash=trace.kernel_hash,
        numerics=trace.numerics,
        build=trace.build,
        speed=trace.speed,
        accuracy=trace.accuracy,
        max_rel_error=trace.gate.max_rel_error,
        cosine=trace.gate.min_cosine,
        seeds=trace.gate.seeds,
        layouts=tuple(trace.layouts),
        features=tuple(trace.features or ("causal",)),
        versions={name: version for name, version in trace.versions.items() if version is not None},
        # In one order, whether they come from the file or from an index made of it.
        resources=dict(sorted(trace.resources.items())),
        timings=tuple(Timing(**each.model_dump(exclude={"spread"})) for each in trace.timings),
        config=dict(sorted(trace.config.items())),
        refusals=tuple(Refusal(**each.model_dump()) for each in trace.refusals or ()),
    )


def _document(trace: Trace) -> dict[str, Any]:
    """Return the trace as the file holds it; fields that older traces lack are left out where they are None."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(each) for name, each in value.items() if name not in _LATER or each is not None}
        return [kept(each) for each in value] if isinstance(value, list) else value

    document: dict[str, Any] = kept(trace.model_dump(mode="json", by_alias=True))
    return document


_LATER = ("features", "basis", "refusals")
"""Fields that came after the first traces were sealed: their absence must not change a digest."""

_AGAIN = "run `kvreg validate` for it again"


def _parse(loaded: object, subject: str) -> Trace:
    try:
        return Trace.model_validate(loaded)
    except ValidationError as error:
        fault = schema_faults.first(error)
        place = f"{subject}, {fault.where()}"
        raise BadFile(wrong(place, required=fault.required, found=fault.found, remedy=_AGAIN)) from error
