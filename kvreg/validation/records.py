"""From the journal's lines of one variant and head size to the record that a trace is sealed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.core.requests import FEATURES, Op
from kvreg.core.variants import Variant
from kvreg.gate import limits
from kvreg.validation.calls import config_of
from kvreg.validation.cells import INPUTS, Cell
from kvreg.validation.machine import Machine
from kvreg_tuning import resources

Line = Mapping[str, Any]

ATTENTION_LIMITS = ("exact_normal", "exact_hard", "cosine", "cosine_floor")
WRITE_LIMITS = ("step", "scale", "zero_point")


@dataclass(frozen=True, slots=True)
class Row:
    """One judged sequence with the cell it stood in."""

    cell: Cell
    input: str
    context: int
    seed: int
    error: float
    """e of an attention, quantization steps of a write."""
    cosine: float
    checks: Mapping[str, Any]
    """Of a write: the other numbers by name."""

    @property
    def place(self) -> dict[str, Any]:
        """Return what a class of rows shares."""
        attends = self.cell.kind != "write"
        usual = (self.cell.dtype, self.cell.page) == ("bf16", 16)
        return {
            "group": self.cell.group if attends else None,
            "kind": self.cell.kind if attends else None,
            "layout": self.cell.layout,
            "input": self.input,
            "context": self.context,
            "dtype": None if usual else self.cell.dtype,
            "page": None if usual else self.cell.page,
            "features": None if self.cell.features == ("causal",) else "+".join(self.cell.features),
        }


def rows_of(lines: Iterable[Line]) -> list[Row]:
    """Return every row of journal lines."""
    found = []
    for line in lines:
        cell = Cell.from_json(line["cell"])
        for row in line.get("rows", ()):
            label = (row["input"], row["context"], row["seed"])
            if cell.kind == "write":
                checks = {
                    "scale_error": row["scale"],
                    "zero_point_error": row["zero"],
                    "wrong_values": row["bits"],
                }
                found.append(Row(cell, *label, row["steps"], 1.0, checks))
            else:
                found.append(Row(cell, *label, row["e"], row["cosine"], {}))
    return found


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the worst numbers of a set of lines, for people: {cells, sequences, seeds, worst, cosine, place}."""
    rows = rows_of(lines)
    if not rows:
        return {"cells": len(lines), "sequences": 0, "seeds": 0, "worst": None, "cosine": None, "place": None}
    worst = max(rows, key=lambda row: row.error)
    return {
        "cells": len(lines),
        "sequences": len(rows),
        "seeds": len({row.seed for row in rows}),
        "worst": worst.error,
        "cosine": min(row.cosine for row in rows) if worst.cell.kind != "write" else None,
        "place": {**worst.place, "seed": worst.seed},
    }


def record(
    variant: Variant,
    head_size: int,
    lines: Sequence[Line],
    machine: Machine,
    *,
    kernel_hash: str,
    versions: Mapping[str, str | None],
    command: str,
    timings: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return everything of a trace but its log, id and digest; the lines are those of passed cells."""
    rows = rows_of(lines)
    attends = variant.op is not Op.WRITE
    worst = max(rows, key=lambda row: row.error)
    return {
        "variant": str(variant.id),
        "op": variant.op.value,
        "mode": variant.mode.value,
        "head_size": head_size,
        "platform": machine.device.platform,
        "device": machine.device.key,
        "arch": machine.device.arch,
        "numerics": machine.numerics,
        "build": "device" if machine.numerics == "device" else "none",
        "speed": "measured" if timings else "none",
        "accuracy": variant.accuracy,
        "kernel_hash": kernel_hash,
        "command": command,
        "started": min(line["started"] for line in lines),
        "ended": max(line["ended"] for line in lines),
        "versions": dict(versions),
        "config": dict(config_of(variant, machine.device, head_size)),
        "layouts": sorted({row.cell.layout for row in rows}, reverse=True),
        "features": [word for word in FEATURES if any(word in row.cell.covered for row in rows)],
        "gate": {
            "cells": len(lines),
            "sequences": len(rows),
            "seeds": len({row.seed for row in rows}),
            **_worst(rows, attends),
            "worst": {**worst.place, "seed": worst.seed},
            "limits": {name: limits.ALL[name].value for name in (ATTENTION_LIMITS if attends else WRITE_LIMITS)},
        },
        "seeds": [{"seed": seed, **_worst(members, attends)} for seed, members in _by(rows, lambda row: row.seed)],
        "classes": [
            {**members[0].place, **_worst(members, attends), **({} if attends else {"checks": _checks(members)})}
            for _, members in _by(rows, _order)
        ],
        "resources": resources.worst([line["resources"] for line in lines if line.get("resources")]),
        "timings": list(timings),
    }


def _worst(rows: Sequence[Row], attends: bool) -> dict[str, Any]:
    error = max(row.error for row in rows)
    if not attends:
        return {"max_step_error": error}
    return {"max_rel_error": error, "min_cosine": min(row.cosine for row in rows)}


def _checks(rows: Sequence[Row]) -> dict[str, Any]:
    # Every cell of a trace has passed, so the bytes outside the written rows are untouched in all of them.
    return {**{name: max(row.checks[name] for row in rows) for name in rows[0].checks}, "untouched": True}


def _by(rows: Sequence[Row], key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return sorted(found.items())


def _order(row: Row) -> tuple[Any, ...]:
    """Return the class of a row as something to sort by."""
    place = row.place
    return (
        place["features"] or "",
        place["dtype"] or "",
        place["page"] or 0,
        place["layout"],
        place["kind"] or "",
        place["group"] or 0,
        INPUTS.index(place["input"]),
        place["context"],
    )
