"""`kvreg evidence`: the records of validations; listed, shown with how to reproduce them, and checked for edits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kvreg.cli import render, trace_view
from kvreg.cli.evidence_check import examine
from kvreg.cli.on_record import Broken, broken, find, sound
from kvreg.cli.once import Group
from kvreg.core import asking, environment, resolve
from kvreg.core.index import Index, Recorded

if TYPE_CHECKING:
    pass

FINDING = 4


@click.group(cls=Group)
def evidence() -> None:
    """List, show and check the records of validations."""


@evidence.command("list")
@click.option("--device", help="Only this device's records. Default: KVREG_DEVICE, else every device's.")
@click.option("--mode", help="Only this KV quantization mode's records.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def list_(device: str | None, mode: str | None, as_json: bool) -> None:
    """List the validations on record, with the worst error and whether the kernel is still the one measured.

    Records that were edited, or are no traces, count for nothing and are listed as broken.
    """
    key, named = _device(device)
    wanted = asking.parse_mode(mode)
    index = Index.open()
    rows = [
        (record, state)
        for record, state in sound(index)
        if key in (None, record.evidence.device) and wanted in (None, record.evidence.mode)
    ]
    damaged = [each for each in broken(index) if each.is_of(key, wanted)]
    if as_json:
        shown = {"evidence": [_summary(*row) for row in rows], "broken": [_broken(each) for each in damaged]}
        render.document({"schema": 1, **shown})
        return
    if named:
        render.line(f"records of {key} only, as KVREG_DEVICE says")
    if not rows and not damaged:
        render.line("no validation is on record here; `kvreg validate --help` says how to make one")
        return
    if rows:
        _table(rows)
    for each in damaged:
        render.line(f"broken: {each.name}: {each.problem} ({each.file})")
    render.line()
    render.line(f"kvreg evidence show {rows[0][0].evidence.trace}" if not damaged else "kvreg evidence check")


def _device(asked: str | None) -> tuple[str | None, bool]:
    """Return the key of the device that is asked for, and whether KVREG_DEVICE is what asks."""
    if asked is not None:
        return resolve.resolve(asked).device.key, False
    text = environment.device()
    return (None, False) if text is None else (resolve.of_environment(text).device.key, True)


def _table(rows: Sequence[tuple[Recorded, str]]) -> None:
    render.table(
        ("id", "variant", "tier", "worst", "seeds", "ended", "state"),
        [
            (
                record.evidence.trace,
                record.evidence.variant,
                record.evidence.tier,
                _worst(record),
                record.evidence.seeds,
                record.ended,
                state,
            )
            for record, state in rows
        ],
    )


@evidence.command()
@click.argument("trace_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="The trace as one JSON document.")
def show(trace_id: str, as_json: bool) -> None:
    """Show one validation (its ID or the start of it): how to reproduce it, its worst cases, its log."""
    from kvreg.core.traces import problems, read_trace, to_evidence  # pydantic: 100 ms that `list` does not pay

    found, state = find(Index.open(), trace_id)
    trace = read_trace(found.file)
    wrong = problems(trace, found.file)
    if wrong:
        state = f"broken: {'; '.join(wrong)}"
    if as_json:
        document = {"state": state.partition(":")[0], "file": str(found.file), "problems": wrong}
        render.document({"schema": 1, **document, "trace": trace.model_dump(mode="json", by_alias=True)})
        return
    trace_view.show(trace, to_evidence(trace), found.file, state)


@evidence.command()
@click.option("--device", help="Only this device's records. Default: every one.")
@click.option("--strict", is_flag=True, help="A stale record is a finding too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(device: str | None, strict: bool, as_json: bool) -> int:
    """Check every record: digest, log and kernel hash.

    An edited record, or a folder that cannot be listed, always ends with 4; a stale one (its kernel has changed since)
    is a warning, or 4 with --strict.
    """
    key = None if device is None else resolve.resolve(device).device.key
    checked, findings = examine(Index.open(), key)
    broken_ones = [each for each in findings if each.kind != "stale"]
    stale = [each for each in findings if each.kind == "stale"]
    if as_json:
        shown = [{"kind": each.kind, "file": str(each.file), "problem": each.problem} for each in findings]
        render.document({"schema": 1, "checked": checked, "findings": shown})
    else:
        for each in findings:
            render.line(f"{each.kind}: {each.file}: {each.problem}")
        unsound = len({each.file for each in findings if each.kind != "unreadable"})
        records = render.counted(checked, "record")
        render.line(f"{records}: {checked - unsound} sound, {len(stale)} stale, {unsound - len(stale)} edited")
        if stale:
            render.line("kvreg validate --stale")
    return FINDING if broken_ones or (strict and stale) else 0


def _summary(record: Recorded, state: str) -> dict[str, object]:
    each = record.evidence
    return {
        "id": each.trace,
        "variant": each.variant,
        "op": each.op.value,
        "mode": each.mode,
        "head_size": each.head_size,
        "device": each.device,
        "arch": each.arch,
        "numerics": each.numerics,
        "build": each.build,
        "speed": each.speed,
        "tier": each.tier.value,
        "max_rel_error": each.max_rel_error,
        "cosine": each.cosine,
        "seeds": each.seeds,
        "features": list(each.features),
        "kernel_hash": each.kernel_hash,
        "ended": record.ended,
        "file": str(record.file),
        "state": state,
    }


def _broken(each: Broken) -> dict[str, str]:
    return {"name": each.name, "file": str(each.file), "problem": each.problem}


def _worst(record: Recorded) -> str:
    error = record.evidence.max_rel_error
    return f"e {error:.1e}" if error is not None else "-"
