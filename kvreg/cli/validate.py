"""`kvreg validate`: run the numerical gate on a device and record the evidence."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import contribution, cross, extras, progress, render
from kvreg.cli.asked import chosen, no_cells, require_known, require_writable
from kvreg.cli.finite import Finite
from kvreg.cli.once import Command
from kvreg.cli.output_file import OutputFile
from kvreg.core import environment
from kvreg.core.errors import GateFailed, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.core.variants import Variant
    from kvreg.validation.cells import Cell
    from kvreg.validation.run import Run, Verdict

GATE_FAILED = GateFailed.exit_code
_SHOWN_FAILURES = 8
MOST_SEEDS = 1000
"""Five times the long form's; a seed is a sequence of each context and input, and memory holds a whole batch."""
SEEDS = f"Seeds of each batch, at most {MOST_SEEDS}; all are in memory at once.  [default: 3; interpreter 1]"


@click.command(cls=Command)
@click.option(
    "--device", help="Device to validate; but for --compile it must be here. Default: KVREG_DEVICE, else this card."
)
@click.option(
    "--compile", "compiling", is_flag=True, help="Compile for cards that are not here, and judge the figures."
)
@click.option("--arch", "archs", multiple=True, help="With --compile: an arch (sm_86, gfx942); may be repeated.")
@click.option("--mode", "modes", multiple=True, help="Only this KV quantization mode; may be repeated.")
@click.option(
    "--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="Only this one; may be repeated."
)
@click.option("--variant", "names", multiple=True, help="Only this variant (NAME or NAME@VERSION); may be repeated.")
@click.option(
    "--stale",
    is_flag=True,
    help="Only what has no current evidence: not validated, a kernel changed, features missing.",
)
@click.option(
    "--features", "every_feature", is_flag=True, help="Try every feature at each head size, not those of models only."
)
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), help=SEEDS)
@click.option(
    "--long", "long_form", is_flag=True, help="The long form: 200 seeds; all contexts on host and interpreter."
)
@click.option("--interpreter", is_flag=True, help="Prove the numerics of Triton kernels without the card.")
@click.option("--write", "target", type=click.Choice(["overlay", "repo"]), default="overlay", show_default=True,
              help="Where traces go: KVREG_HOME, or the checkout.")  # fmt: skip
@click.option("--journal", type=OutputFile(), help="Keep finished cells in this file.")
@click.option("--jobs", type=click.IntRange(1), help="Processes on the host.  [default: its cores; a card takes one]")
@click.option("--cell-timeout", type=Finite(min=1.0), help="Seconds after which a cell counts as hung.")
@click.option("--no-timings", is_flag=True, help="Leave the speed of a card unmeasured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def validate(
    device: str | None,
    compiling: bool,
    archs: Sequence[str],
    modes: Sequence[str],
    head_sizes: Sequence[int],
    names: Sequence[str],
    stale: bool,
    every_feature: bool,
    seeds: int | None,
    long_form: bool,
    interpreter: bool,
    target: str,
    journal: Path | None,
    jobs: int | None,
    cell_timeout: float | None,
    no_timings: bool,
    as_json: bool,
) -> int:
    """Run the numerical gate and record the evidence.

    Every finished cell is kept in a journal, so that a run that was cut off goes on where it stopped. Ends with 5 when
    a kernel was wrong (no trace is written for it) and with 6 when the device is absent or was lost.
    """
    settings = environment.read()
    # Words first: they are wrong or right whatever is installed here.
    require_known(device, modes, names, settings)
    if compiling or archs:
        beside = {
            "--stale": stale, "--features": every_feature, "--seeds": seeds, "--long": long_form,
            "--interpreter": interpreter, "--journal": journal, "--no-timings": no_timings,
        }  # fmt: skip
        _only_compiling(compiling, [name for name, value in beside.items() if value])
        named = (*((device,) if device is not None else ()), *archs)
        asked = cross.Asked(named, tuple(modes), tuple(head_sizes), tuple(names), target, jobs, cell_timeout, as_json)
        return cross.run(asked, settings)
    with extras.kernels("validate"):
        from kvreg.validation import cells as lists
        from kvreg.validation import journal as journals
        from kvreg.validation import machine as machines
        from kvreg.validation import run as runs
        from kvreg.validation.stale import lacking

    machine = machines.machine_for(device, interpreter=interpreter, default=settings.device)
    variants = chosen(machine.variants(settings.backend), modes, names)
    # Asked before the work, so that a folder that cannot be written costs nothing.
    folders = {each.id: machines.evidence_folder(machine, each, settings.home, target) for each in variants}
    for folder in dict.fromkeys(folders.values()):
        require_writable(folder, target)
    sizes = tuple(dict.fromkeys(head_sizes)) or lists.HEAD_SIZES
    profile = lists.PROFILES[_profile(machine.place, interpreter, long_form)]
    if seeds is not None:
        profile = profile.with_seeds(seeds)
    if every_feature:
        profile = profile.with_every_feature()

    path = journal or settings.home / "validate" / f"{_file_name(machine.device.key, machine.numerics)}.jsonl"
    with journals.Journal(path) as log, progress.view() as view:
        run = runs.Run(
            machine=machine,
            variants=variants,
            cells=(),
            journal=log,
            command=shlex.join(["kvreg", *sys.argv[1:]]),
            view=view,
            jobs=jobs or os.cpu_count() or 1,
            cell_timeout_s=cell_timeout,
        )
        run.probe()
        pairs = [(variant, size) for variant in variants for size in sizes]
        if stale:
            from kvreg.core.index import Index

            pairs = lacking(machine, variants, sizes, run.hashes, Index.open(), profile)
        run.cells = tuple(_cells(pairs, profile))
        if not run.cells and not stale:
            raise no_cells(variants, sizes)
        run.compile()
        run.judge()
        if not no_timings:
            run.time()
        verdicts = run.write(lambda variant: folders[variant.id])
        if journal is None:
            log.remove()
    _answer(run, verdicts, as_json)
    return GATE_FAILED if any(each.status != "passed" for each in verdicts) else 0


def _only_compiling(compiling: bool, beside: Sequence[str]) -> None:
    """Raise UsageError for what does not go with a compilation: --arch without it, and what needs a device."""
    if not compiling or beside:
        raise UsageError(
            wrong(
                "validate",
                required="--compile for --arch" if not compiling else "--compile without what runs kernels",
                found="--arch alone" if not compiling else " ".join(beside),
                remedy="add --compile" if not compiling else "leave them out, or --compile",
            )
        )


def _profile(place: str, interpreter: bool, long_form: bool) -> str:
    name = "interpreter" if interpreter else "cpu" if place == "cpu" else "device"
    return f"{name}-long" if long_form else name


def _file_name(device: str, numerics: str) -> str:
    from kvreg.core.devices import folder_name

    return f"{folder_name(device)}-{numerics}"


def _cells(pairs: Sequence[tuple[Variant, int]], profile: Any) -> list[Cell]:
    from kvreg.validation.cells import work_list

    found = [cell for variant, size in pairs for cell in work_list([variant], [size], profile)]
    # Cells with the same rows stand together over all variants, so that their reference is computed once.
    return sorted(found, key=lambda cell: (cell.mode, cell.head_size, cell.kind == "write", cell.rows, cell.layout))


def _answer(run: Run, verdicts: Sequence[Verdict], as_json: bool) -> None:
    from kvreg.validation.records import summary

    rows = [(each, summary(each.lines)) for each in verdicts]
    request = contribution.of_validation(run, rows)
    if as_json:
        render.document(
            {
                "schema": 1,
                "device": run.machine.device.key,
                "numerics": run.machine.numerics,
                "versions": dict(run.versions),
                "results": [_document(each, found) for each, found in rows],
                "pull_request": request.to_json()
                if (request := contribution.of_validation(run, rows)) is not None
                else None,
            }
        )
        return
    if not verdicts:
        render.line(f"{run.machine.device.key}: every variant has current evidence; nothing to validate")
        return
    render.table(
        ("variant", "head", "cells", "sequences", "worst", "cosine", "result"),
        [
            (
                each.variant.id,
                each.head_size,
                found["cells"],
                found["sequences"],
                _error(each, found["worst"]),
                "-" if found["cosine"] is None else f"{found['cosine']:.6f}",
                each.status if each.kept is None else f"{each.status}; {each.kept}",
            )
            for each, found in rows
        ],
    )
    failed = [line for each in verdicts for line in each.failed]
    for line in failed[:_SHOWN_FAILURES]:
        render.line()
        render.line(f"{line['status']}: {_cell_name(line)}")
        for text in (line.get("failures") or [line["error"]])[:3]:
            render.line(f"  {text}")
    if len(failed) > _SHOWN_FAILURES:
        render.line(f"and {len(failed) - _SHOWN_FAILURES} more; --json shows all of them")
    written = [each for each in verdicts if each.trace is not None]
    render.line()
    if written:
        render.line(f"{len(written)} traces in {_common(written)}")
        render.line(f"kvreg evidence show {written[0].trace_id}")
        if run.machine.numerics == "device":
            contribution.show(request)
    else:
        render.line("no trace was written")


def _document(verdict: Verdict, found: dict[str, Any]) -> dict[str, Any]:
    finite = None if found["worst"] is None or found["worst"] == float("inf") else found["worst"]
    return {
        "variant": str(verdict.variant.id),
        "op": verdict.variant.op.value,
        "mode": verdict.variant.mode.value,
        "head_size": verdict.head_size,
        "status": verdict.status,
        **{name: found[name] for name in ("cells", "sequences", "seeds", "cosine", "place")},
        "worst": finite,
        "trace": verdict.trace_id,
        "file": str(verdict.trace) if verdict.trace else None,
        "kept": verdict.kept,
        "failures": [
            {"cell": line["cell"], "status": line["status"], "found": line.get("failures") or [line["error"]]}
            for line in verdict.failed
        ],
    }


def _error(verdict: Verdict, worst: float | None) -> str:
    if worst is None:
        return "-"
    return f"{worst:.3g} steps" if verdict.variant.op.value == "write" else f"{worst:.2e}"


def _cell_name(line: Any) -> str:
    from kvreg.validation.cells import Cell

    return str(Cell.from_json(line["cell"]))


def _common(written: Sequence[Verdict]) -> str:
    return os.path.commonpath([str(each.trace.parent) for each in written if each.trace is not None])
