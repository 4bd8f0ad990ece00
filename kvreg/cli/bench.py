"""`kvreg bench`: times of the kernels beside those of others, at the shapes that models run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import extras, progress
from kvreg.cli.once import Command
from kvreg.cli.output_file import OutputFile
from kvreg.core import asking, environment
from kvreg.core.errors import GateFailed, Refused, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.bench.driver import Driver
    from kvreg.bench.shapes import Shape
    from kvreg.bench.subjects import Planned
    from kvreg.core.modes import Mode
    from kvreg.validation.machine import Machine

WORKS = ("decode", "verify", "prefill", "write")
PEER = "Folder of five kernel files of vLLM's wheel; docs/bench.md names them."
ALL_VARIANTS = "Each variant that fits, whatever its evidence, and not only what select answers."
RAGGED = "Contexts from LEAST to MOST in equal factors, such as 17:131072x64, instead of --batch and --context."
PAYS = "From which context on int4 is faster than bf16, for batches of 1 to 64 sequences."
SHAPE = "The shape's --batch, --context, heads and page; without any of these the shapes of docs/bench.md."


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one call, by the names that click gives them."""

    device: str | None
    modes: Sequence[str]
    works: Sequence[str]
    batch: int | None
    context: int | None
    q_heads: int | None
    kv_heads: int | None
    head_size: int | None
    page: int | None
    ragged: str | None
    only: Sequence[str]
    every: bool
    peer: Path | None
    pays: bool
    plot: Path | None
    as_json: bool

    @property
    def names_a_shape(self) -> bool:
        """Whether flags say what is measured, instead of the table."""
        flags = (self.batch, self.context, self.q_heads, self.kv_heads, self.head_size, self.page, self.ragged)
        return any(flag is not None for flag in flags)


@click.command(cls=Command)
@click.option("--device", help="Device to measure. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--mode", "modes", multiple=True, help="Only this KV quantization mode; may be repeated.")
@click.option("--op", "works", type=click.Choice(WORKS), multiple=True, help="Only this work; may be repeated.")
@click.option("--batch", type=click.IntRange(1), help="Sequences.  [default: 32]")
@click.option("--context", type=click.IntRange(1), help="Tokens of each in the cache.  [default: 8192]")
@click.option("--q-heads", type=click.IntRange(1), help="Query heads.  [default: 32]")
@click.option("--kv-heads", type=click.IntRange(1), help="KV heads.  [default: 8]")
@click.option("--head-size", type=click.IntRange(1), help="Channels of a head.  [default: 128]")
@click.option("--page", type=click.IntRange(1), help="Token slots of a page.  [default: 16]")
@click.option("--ragged", help=RAGGED)
@click.option("--shape", "only", multiple=True, help="Only shapes of the table whose name has these words.")
@click.option("--all-variants", "every", is_flag=True, help=ALL_VARIANTS)
@click.option("--peer", type=click.Path(file_okay=False, exists=True, path_type=Path), help=PEER)
@click.option("--pays", is_flag=True, help=PAYS)
@click.option("--plot", type=OutputFile(), help="Draw how many times faster than bf16 each kernel is into this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def bench(**asked: Any) -> int:
    """Time the kernels beside torch's SDPA, and vLLM's and FlashInfer's where they are here.

    Every row has the time of one call (graph replay over buffers that rotate through more than three times the L2),
    its share of the read bandwidth measured in the same run, how many times faster it is than the fastest bf16 of the
    run, the host's time of one eager call, and e against fp64 attention over the cache that it read. Without flags for
    a shape it measures the table of docs/bench.md. Ends with 5 when a kernel of kvreg was wrong.
    """
    return _bench(Asked(**asked))


def _bench(asked: Asked) -> int:
    settings = environment.read()
    modes = _modes(asked.modes)
    if asked.plot is not None:
        from kvreg.cli import bench_plot

        bench_plot.require()
    with extras.kernels("bench"):
        from kvreg.bench import driver as drivers
        from kvreg.validation import machine as machines

    machine = machines.machine_for(asked.device, default=settings.device)
    planned = _planned(asked, machine, modes)
    _require_a_subject(planned)
    from kvreg.cli import bench_view

    with progress.view() as view:
        probed = machines.probe(machine)
        found = _driver(asked, machine, drivers, view).run(planned, modes)
    versions = machines.versions(machine, probed)
    bench_view.show(found, machine, versions, asked.as_json)
    if asked.plot is not None:
        bench_plot.draw(found, asked.plot)
    wrong_ones = any(row.status == "wrong" and row.maker == "kvreg" for row in found.rows())
    return GateFailed.exit_code if wrong_ones else 0


def _modes(words: Sequence[str]) -> tuple[Mode, ...]:
    from kvreg.bench.subjects import DEFAULT_MODES
    from kvreg.core.modes import Mode

    named: list[Mode] = []
    for word in words:
        mode = asking.parse_mode(word)
        named += [mode] if mode is not None else list(Mode)
    return tuple(dict.fromkeys(named)) or DEFAULT_MODES


def _planned(asked: Asked, machine: Machine, modes: Sequence[Mode]) -> list[Planned]:
    from kvreg.bench import subjects

    shapes = _shapes(asked, machine)
    vllm = asked.peer is not None
    return [subjects.plan(shape, machine.device, modes, every=asked.every, vllm=vllm) for shape in shapes]


def _shapes(asked: Asked, machine: Machine) -> Sequence[Shape]:
    from kvreg.bench import shapes

    if asked.names_a_shape:
        if asked.only:
            raise UsageError(
                wrong("--shape", required="the table alone", found="flags for a shape too", remedy="leave one out")
            )
        return [
            shapes.asked(
                work,
                batch=asked.batch or 32,
                context=asked.context or 8192,
                q_heads=asked.q_heads or 32,
                kv_heads=asked.kv_heads or 8,
                head_size=asked.head_size or 128,
                page=asked.page or 16,
                ragged=asked.ragged,
            )
            for work in (shapes.WORKS if not asked.works else [each for each in shapes.WORKS if each in asked.works])
        ]
    table = shapes.CARD if machine.is_card else shapes.HOST
    chosen = [
        shape
        for shape in table
        if (not asked.works or shape.work in asked.works)
        and (not asked.only or any(words in shape.name for words in asked.only))
    ]
    if not chosen:
        names = ", ".join(shape.name for shape in table)
        raise UsageError(
            wrong("--shape", required=f"words of one of: {names}", found=" ".join(asked.only), remedy="name another")
        )
    return chosen


def _require_a_subject(planned: Sequence[Planned]) -> None:
    """Raise Refused where no variant of kvreg is measured at any shape."""
    if any(subject.maker == "kvreg" for each in planned for subject in each.subjects):
        return
    (first, *others) = [refusal for each in planned for refusal in each.refusals]
    more = f" (and {len(others)} more)" if others else ""
    raise Refused(f"bench: {first.reason}{more}; or take --all-variants, which asks for no evidence")


def _driver(asked: Asked, machine: Machine, drivers: Any, view: Any) -> Driver:
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
    made: Driver = drivers.Driver(machine.device.key, machine.place, peer, outcomes, require_device, view)
    return made
