"""One trace for people: what it is evidence of, its worst classes, its timings, and how to reproduce it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.cli import render
from kvreg.core.evidence import Evidence

if TYPE_CHECKING:
    from kvreg.core.traces import ClassRecord, Trace

_SHOWN_CLASSES = 12


def show(trace: Trace, evidence: Evidence, file: Path, state: str) -> None:
    """Print a trace; the last line is the command that reproduces it."""
    render.line(f"{trace.id}: {trace.variant}, {evidence.tier}, {state}")
    axes = f"numerics {trace.numerics}, build {trace.build}, speed {trace.speed}, accuracy {trace.accuracy}"
    gate = f"{trace.gate.cells} cells, {trace.gate.sequences} sequences, {trace.gate.seeds} seeds"
    facts: list[tuple[str, object]] = [
        ("device", f"{trace.device} ({trace.platform}, {trace.arch})"),
        ("evidence", axes),
        ("gate", gate),
        ("limits", trace.gate.limits),
        ("worst", _place(trace)),
        ("layouts", trace.layouts),
        ("features", evidence.features),
        ("launch parameters", trace.config),
        ("resources", trace.resources),
        (
            "refused",
            "; ".join(f"{r.field}: required {r.required}, found {r.found}" for r in trace.refusals or ()) or "no",
        ),
        ("numerics of", trace.basis.id if trace.basis is not None else "its own cells"),
        ("versions", {name: value for name, value in trace.versions.items() if value is not None}),
        ("ran", f"{trace.started} to {trace.ended}"),
        ("kernel hash", trace.kernel_hash),
        ("log", f"{trace.log.file}, {trace.log.lines} lines, sha256 {trace.log.sha256}"),
        ("file", str(file)),
    ]
    render.line()
    render.table(("fact", "value"), facts)
    render.line()
    if trace.build == "cross" and not state.startswith("broken"):  # whose log is not to be read
        _compiled(trace, file)
    worst_first = sorted(trace.classes, key=lambda each: -(each.max_rel_error or each.max_step_error or 0.0))
    if worst_first:
        render.table(
            ("group", "kind", "layout", "input", "context", "worst", "cosine"),
            [
                (
                    _known(c.group),
                    _known(c.kind),
                    c.layout,
                    _input(c),
                    _known(c.context),
                    _error(c),
                    _known(c.min_cosine),
                )
                for c in worst_first[:_SHOWN_CLASSES]
            ],
            title=f"worst of {len(trace.classes)} classes",
        )
    if trace.timings:
        render.line()
        render.table(
            ("batch", "context", "group", "us", "bf16 us", "bf16 variant", "of the card's limit"),
            [
                (
                    t.batch,
                    t.context,
                    t.group,
                    t.us,
                    _known(t.bf16_us),
                    _known(t.bf16_variant),
                    _known(t.fraction_of_limit),
                )
                for t in trace.timings
            ],
            title="timings",
        )
    render.line()
    on_card = trace.numerics == "device" and trace.platform != "cpu"
    render.line("to reproduce it, on such a card:" if on_card else "to reproduce it, which needs no card:")
    render.line(trace.command)


def _compiled(trace: Trace, file: Path) -> None:
    """Print what was compiled, whatever launch parameters were tried, and what the compiler said of it."""
    from kvreg.core.traces import read_log  # pydantic, which a trace at hand has loaded

    render.table(
        ("launch parameters", "form", "registers", "spilled bytes", "shared bytes", "matrix unit", "loads by bytes"),
        [
            (
                " ".join(f"{name}={value}" for name, value in line["config"].items()),
                line["form"],
                *(line["reading"].get(name) for name in ("registers", "spill_bytes", "shared_bytes")),
                f"{line['reading'].get('matrix_instructions', 0)} {line['reading'].get('matrix_instruction') or '-'}",
                line["reading"].get("loads", {}) if line["status"] == "ok" else f"{line['status']}: {line['error']}",
            )
            for line in read_log(file)
        ],
        title="compiled",
    )
    render.line()


def _place(trace: Trace) -> str:
    gate, worst = trace.gate, trace.gate.worst
    figures = {
        "e": gate.max_rel_error,
        "cosine": gate.min_cosine,
        "steps": gate.max_step_error,
        "rotation": gate.rotation_error,
    }
    text = ", ".join(f"{name} {value:.6g}" for name, value in figures.items() if value is not None)
    if worst is None:
        return text
    cell = {"group": worst.group, "kind": worst.kind, "layout": worst.layout, "input": worst.input}
    cell |= {"features": worst.features, "context": worst.context, "seed": worst.seed}
    return f"{text} at {', '.join(f'{name} {value}' for name, value in cell.items() if value is not None)}"


def _input(record: ClassRecord) -> str:
    return record.input if record.features is None else f"{record.input}, {record.features}"


def _error(record: object) -> str:
    error, steps = getattr(record, "max_rel_error", None), getattr(record, "max_step_error", None)
    if error is not None:
        return f"e {error:.2e}"
    return f"{steps:.3g} steps" if steps is not None else "-"


def _known(value: object) -> object:
    return "-" if value is None else value
