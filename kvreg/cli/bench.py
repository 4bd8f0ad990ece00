"""`kvreg bench`: times of the kernels beside those of others, at the shapes that models run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import bench_asked, bench_end, extras, plots, progress
from kvreg.cli.bench_asked import Asked
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Command
from kvreg.cli.output_file import OutputFile
from kvreg.core import environment, notices
from kvreg.core.buckets import MOST_AT_ONCE
from kvreg.core.errors import UsageError

if TYPE_CHECKING:
    from kvreg.bench.driver import Driver
    from kvreg.bench.results import Results
    from kvreg.bench.subjects import Planned
    from kvreg.core.modes import Mode
    from kvreg.validation.machine import Machine

WORKS = ("decode", "verify", "prefill", "write")
PEER = "Folder of five kernel files of vLLM's wheel; docs/bench.md names them."
ALL_VARIANTS = "Each variant that fits, whatever its evidence, and not only what select answers."
RAGGED = "Contexts from LEAST to MOST in equal factors, such as 17:131072x64, instead of --batch and --context."
CHUNK = "With --op prefill alone: query tokens of each sequence, the last of its context.  [default: all]"
PAYS = (
    "From which context on int4 (or --mode) decodes faster than bf16, for batches of 1 to 64 sequences; --batch and"
    " --context are then the most of each."
)
STEP = "Time a whole decode step of phi3-mini, llama3-8b or a folder with a config.json, with each kind of cache."
LAYERS = "With --step: only so many of the model's layers."
HOST = "Time what the host takes for eager calls, every compiler ended, instead of what the device takes."
PLOT = "Draw how many times faster than bf16 each kernel is into this file."


@click.command(cls=Command)
@click.option("--device", help="Device to measure. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--mode", "modes", multiple=True, help="Only this KV quantization mode; may be repeated.")
@click.option("--op", "works", type=click.Choice(WORKS), multiple=True, help="Only this work; may be repeated.")
@click.option("--batch", type=click.IntRange(1, MOST_AT_ONCE), help="Sequences.  [default: 32]")
@click.option(
    "--context", type=click.IntRange(1), help="Tokens of each in the cache.  [default: 8192; with --step 1088]"
)
@click.option("--q-heads", type=click.IntRange(1, MOST_AT_ONCE), help="Query heads.  [default: 32]")
@click.option("--kv-heads", type=click.IntRange(1, MOST_AT_ONCE), help="KV heads.  [default: 8]")
@click.option(
    "--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="May be repeated.  [default: 128]"
)
@click.option("--page", type=click.IntRange(1), help="Token slots of a page.  [default: 16]")
@click.option("--ragged", help=RAGGED)
@click.option("--chunk", type=click.IntRange(1), help=CHUNK)
@click.option("--shape", "only", multiple=True, help="Only shapes of the table whose name has these words.")
@click.option("--all-variants", "every", is_flag=True, help=ALL_VARIANTS)
@click.option("--peer", type=NamedPath(file_okay=False, exists=True, path_type=Path), help=PEER)
@click.option("--pays", is_flag=True, help=PAYS)
@click.option("--step", metavar="MODEL", help=STEP)
@click.option("--layers", type=click.IntRange(1), help=LAYERS)
@click.option("--host", is_flag=True, help=HOST)
@click.option("--plot", type=OutputFile(), help=PLOT)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def bench(**asked: Any) -> int:
    """Time the kernels beside torch's SDPA, and vLLM's and FlashInfer's where they are here.

    Every row has the time of one call (graph replay over buffers that rotate through more than three times the L2),
    its share of the read bandwidth measured in the same run, how many times faster it is than the fastest bf16 of the
    run, the host's time of one eager call, and e against fp64 attention over the cache that it read. Without flags for
    a shape it measures the table of docs/bench.md. Ends with 3 when no mode that was asked for can be measured, or
    each of them failed, with 5 when a kernel of kvreg was wrong.
    """
    return _bench(Asked(**asked))


def _bench(asked: Asked) -> int:
    settings = environment.read()
    modes = bench_asked.modes_of(asked)
    if asked.plot is not None:
        plots.require(asked.plot)
    with extras.kernels("bench"):
        from kvreg.validation import machine as machines

        machine = machines.machine_for(asked.device, default=settings.device, command="bench")
        if asked.step is not None:
            return _step(asked, machine, modes)
        planned = bench_asked.plan(asked, machine, modes)
    if asked.host:
        return _host(asked, machine, planned, modes)
    from kvreg.cli import bench_view

    with progress.view() as view:
        probed = machines.probe(machine)
        found = _driver(asked, machine, view).run(planned, modes)
    versions = machines.versions(machine, probed)
    code = max(bench_end.exit_code(list(found.rows()), modes), _plot(asked, found))
    if asked.pays:
        from kvreg.bench import pays

        bench_view.show_pays(found, pays.answers(found.shapes, modes), machine, versions, asked.as_json)
    else:
        bench_view.show(found, machine, versions, asked.as_json)
    return code


def _plot(asked: Asked, found: Results) -> int:
    """Draw what was measured, if that was asked for; returns the exit code.

    A figure that cannot be drawn is a warning: the answer that was measured stands beside it.
    """
    if asked.plot is None or not any(row.is_timed for row in found.rows()):
        return 0
    from kvreg.cli import bench_plot

    try:
        (bench_plot.draw_pays if asked.pays else bench_plot.draw)(found, asked.plot)
    except UsageError as error:
        notices.warn(error.message)
        return UsageError.exit_code
    return 0


def _step(asked: Asked, machine: Machine, modes: Sequence[Mode]) -> int:
    from kvreg.bench.step import running
    from kvreg.cli import bench_step
    from kvreg.validation import machine as machines

    shape, planned = bench_step.plan(asked, machine, modes)
    with progress.view() as view:
        probed = machines.probe(machine)
        found = running.run(_driver(asked, machine, view), shape, planned, modes)
    bench_step.show(found, machine, machines.versions(machine, probed), asked.as_json)
    return bench_end.exit_code(found.rows, modes, smaller=bench_end.SMALLER_STEP)


def _host(asked: Asked, machine: Machine, planned: Sequence[Planned], modes: Sequence[Mode]) -> int:
    from kvreg.bench import host
    from kvreg.cli import bench_host
    from kvreg.validation import machine as machines

    with progress.view() as view:
        probed = machines.probe(machine)
        rows = host.run(_driver(asked, machine, view), planned, modes)
    bench_host.show(rows, machine, machines.versions(machine, probed), asked.as_json)
    return bench_end.exit_code(rows, modes)


def _driver(asked: Asked, machine: Machine, view: Any) -> Driver:
    from kvreg.bench.driver import Driver
    from kvreg.validation import machine as machines
    from kvreg_tuning.pool import Task, run_all
    from kvreg_tuning.worker import POISONED, Outcome

    def outcomes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Outcome]]:
        return run_all(tasks, workers=workers, environment=machine.environment)

    def require_device(outcome: Outcome) -> None:
        suspect = outcome.status in ("crash", "timeout") or POISONED.search(outcome.error + outcome.traceback)
        if suspect and machine.is_card:
            machines.probe(machine)

    peer = None if asked.peer is None else str(asked.peer.absolute())
    return Driver(machine.device.key, machine.place, peer, outcomes, require_device, view)
