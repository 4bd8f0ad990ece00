"""The tables of a validation for people, in Markdown: worst errors by head size, timings, the other stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvreg.testing import HARD
from kvreg.validation.cells import SEEDS_IN_LONG
from kvreg.validation.records import Row, rows_of

Line = Mapping[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def errors(lines: Sequence[Line]) -> str:
    """Return worst e by mode and head size: N(0,1), hard inputs, the 200 seeds, and context 1.

    At context 1 the output is the one cached row, so that e there is the error of undoing the rotation and of the
    output's own type.
    """
    rows = [row for row in rows_of(lines) if row.cell.kind != "write"]
    body = []
    for mode, size in sorted({(row.cell.mode, row.cell.head_size) for row in rows}):
        own = [row for row in rows if (row.cell.mode, row.cell.head_size) == (mode, size)]
        grid = [row for row in own if len(row.cell.seeds) < SEEDS_IN_LONG]
        many = [row for row in own if len(row.cell.seeds) >= SEEDS_IN_LONG]
        by_kind = [_worst([row for row in grid if row.cell.kind == kind]) for kind in ("decode", "prefill", "mixed")]
        body.append(
            (
                mode,
                size,
                *by_kind,
                _worst([row for row in grid if row.input not in HARD]),
                _worst([row for row in grid if row.input in HARD]),
                _worst([row for row in grid if row.context == 1]),
                _worst(many),
                f"{min((row.cosine for row in own), default=1.0):.6f}",
                len(own),
            )
        )
    header = (
        "mode",
        "head",
        "decode",
        "prefill",
        "mixed",
        "N(0,1)",
        "hard",
        "context 1",
        "200 seeds",
        "cosine",
        "sequences",
    )
    return table(header, body)


def writes(lines: Sequence[Line]) -> str:
    """Return the worst of the writes by mode and head size."""
    rows = [row for row in rows_of(lines) if row.cell.kind == "write"]
    body = []
    for mode, size in sorted({(row.cell.mode, row.cell.head_size) for row in rows}):
        own = [row for row in rows if (row.cell.mode, row.cell.head_size) == (mode, size)]
        numbers = [f"{max(row.checks[name] for row in own):.3g}" for name in ("scale_error", "zero_point_error")]
        wrong = max(row.checks["wrong_values"] for row in own)
        body.append((mode, size, f"{max(row.error for row in own):.4g}", *numbers, wrong, len(own)))
    return table(("mode", "head", "steps", "scale", "zero point", "wrong values", "sequences"), body)


def timings(found: Iterable[tuple[str, int, Sequence[Mapping[str, Any]]]]) -> str:
    """Return the timed points: (variant, head size, points as a trace holds them)."""
    body = []
    for variant, size, points in found:
        for point in points:
            base, share = point.get("bf16_us"), point.get("fraction_of_limit")
            body.append(
                (
                    variant,
                    size,
                    point["group"],
                    f"{point['batch']} x {point['context']}" if point["context"] else f"{point['batch']} tokens",
                    f"{point['us']:.1f}",
                    f"{100 * (point.get('spread') or 0):.1f} %",
                    "-" if base is None else f"{base:.1f}",
                    "-" if share is None else f"{100 * share:.0f} %",
                )
            )
    return table(("variant", "head", "group", "work", "us", "spread", "none, us", "of read limit"), body)


def bench(found: Mapping[str, Any]) -> list[str]:
    """Return a paragraph and a table a shape, of what `kvreg.bench.results.Results.to_json` gave."""
    rate = found["read_bandwidth"]
    parts = ["read bandwidth not measured" if rate is None else f"read bandwidth {rate / 1e12:.3f} TB/s"]
    for shape in found["shapes"]:
        best = shape["best_bf16"]
        beside = "no bf16 was timed" if best is None else f"fastest bf16: {best['kernel']}, {best['us']:.1f} us"
        mark = " (marked: no FlashInfer, kvreg's bf16 below 85 % of the card)" if shape["marked"] else ""
        parts.append(f"### {shape['name']}\n\n{beside}{mark}")
        parts.append(table(BENCH_COLUMNS, [_bench_row(row) for row in shape["rows"]]))
    return parts


BENCH_COLUMNS = ("mode", "kernel", "us", "spread", "TB/s", "of read limit", "times bf16", "host us", "e", "parameters")


def _bench_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    if row["status"] != "ok":
        return (row["mode"], row["kernel"], row["status"], *["-"] * 6, row["detail"].replace("|", "/"))
    us, moved = row["us"], row["bytes"]
    config = row["config"] or {}
    return (
        row["mode"],
        row["kernel"],
        f"{us:.1f}",
        f"{100 * row['spread']:.1f} %",
        "-" if moved is None else f"{moved / us / 1e6:.3f}",
        "-" if row["share"] is None else f"{100 * row['share']:.0f} %",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "-" if row["host_us"] is None else f"{row['host_us']:.0f}",
        "-" if row["e"] is None else f"{row['e']:.1e}",
        " ".join(f"{name}={value}" for name, value in config.items()) or "-",
    )


STEP_COLUMNS = ("mode", "kernel", "us", "spread", "tokens/s", "times bf16", "attention, us", "e", "hidden")


def step(found: Mapping[str, Any]) -> str:
    """Return the rows of what `kvreg.bench.step.results.StepResults.to_json` gave."""
    model = found["step"]["model"]
    size = f"{model['name']}: {model['layers']} layers, {found['step']['batch']} x {found['step']['context']}"
    return f"{size}\n\n{table(STEP_COLUMNS, [_step_row(row) for row in found['rows']])}"


def _step_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    if row["status"] != "ok":
        return (row["mode"], row["kernel"], row["status"], row["detail"].replace("|", "/"), *["-"] * 5)
    return (
        row["mode"],
        row["kernel"],
        f"{row['us']:.1f}",
        f"{100 * row['spread']:.1f} %",
        f"{row['tokens_per_second']:.0f}",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        f"{row['attention_us']:.1f}",
        f"{row['e']:.1e}",
        "-" if row["hidden"] is None else f"{row['hidden']:.1e}",
    )


def failures(lines: Iterable[Line], most: int = 20) -> str:
    """Return the first failures as a list."""
    found = [
        f"- {line['status']}: {line['cell']['variant']} d{line['cell']['head_size']} {line['cell']['kind']} "
        f"group {line['cell']['group']} {line['cell']['layout']} {line['cell']['dtype']} page {line['cell']['page']}: "
        f"{(line.get('failures') or [line['error']])[0]}"
        for line in lines
        if line["status"] != "ok"
    ]
    more = [f"- and {len(found) - most} more"] if len(found) > most else []
    return "\n".join([*found[:most], *more])


def _worst(rows: Sequence[Row]) -> str:
    return f"{max(row.error for row in rows):.2e}" if rows else "-"
