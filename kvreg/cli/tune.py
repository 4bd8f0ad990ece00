"""`kvreg tune`: find the best launch parameters of a device's variants, gate first, and keep them in a tuned file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli.once import Group
from kvreg.core import asking, environment
from kvreg.core.errors import UsageError, wrong
from kvreg.core.requests import DTYPES, Op

if TYPE_CHECKING:
    from kvreg.cli.tune_view import Board
    from kvreg.core.devices import Device
    from kvreg.core.environment import Environment
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.effort import Effort, Strategy
    from kvreg_tuning.journal import Journal
    from kvreg_tuning.spaces import Space
    from kvreg_tuning.workloads import Shape

JOURNAL = "tune/journal.sqlite"
"""Below KVREG_HOME."""

HEAD_SIZE = 128
GROUP, KV_HEADS = 4, 8
"""What select assumes, too."""

LEVELS = ("quick", "normal", "full")
SEARCHES = ("random", "optuna", "exhaustive")
WORKLOAD = (
    "chat, long-context, batch-serving, one bucket (b1-c131072, t8192), or a YAML file of buckets. Default: batch 32"
    " and context 8192, as select assumes; on cpu a few small buckets, for 100 s at most."
)
MODEL = "A Hugging Face model's folder: its head sizes, groups and longest context."
EFFORT = "How much is tried; docs/tuning.md has the numbers."
SEARCH = "How the next config is chosen.  [default: the effort's; random where optuna is not installed]"
REPEATS = "Race the finalists so often, to see how sure the winner is; the first race counts."
RECORD = "Write every trial to this file (.jsonl.gz), for --simulate."
SIMULATE = "Replay a recorded space and run nothing; needs a KVREG_HOME of its own."


@dataclass(frozen=True, slots=True)
class Common:
    """What every run is told, real or replayed."""

    effort: Effort
    strategy: Strategy
    budget_s: float | None
    seed: int
    repeats: int
    home: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Those of a campaign."""
        return {name: getattr(self, name) for name in ("effort", "strategy", "budget_s", "seed", "repeats")}


@click.group(cls=Group, invoke_without_command=True)
@click.option("--device", help="Device to tune. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--mode", "modes", multiple=True, help="Only this KV quantization mode; may be repeated.")
@click.option(
    "--op", "ops", type=click.Choice([op.value for op in Op]), multiple=True, help="Only this op; may be repeated."
)
@click.option("--variant", "names", multiple=True, help="Only this variant (NAME or NAME@VERSION); may be repeated.")
@click.option(
    "--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="May be repeated.  [default: 128]"
)
@click.option("--group", type=click.IntRange(1), help="Query heads for each KV head.  [default: 4]")
@click.option("--kv-heads", type=click.IntRange(1), help="KV heads.  [default: 8]")
@click.option("--dtype", type=click.Choice(DTYPES), help="The model's dtype.  [default: bf16]")
@click.option("--workload", help=WORKLOAD)
@click.option("--model", type=click.Path(file_okay=False, exists=True, path_type=Path), help=MODEL)
@click.option("--effort", "level", type=click.Choice(LEVELS), default="normal", show_default=True, help=EFFORT)
@click.option("--search", type=click.Choice(SEARCHES), help=SEARCH)
@click.option("--budget", help="Time after which the run ends with what it has: 90s, 10m, 1.5h.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the search.")
@click.option("--repeat-races", "repeats", type=click.IntRange(1), default=1, show_default=True, help=REPEATS)
@click.option("--write", "target", type=click.Choice(["overlay", "repo"]), default="overlay", show_default=True,
              help="Where winners go: KVREG_HOME, or the checkout.")  # fmt: skip
@click.option("--require-improvement", is_flag=True, help="End with 7 when no bucket got faster.")
@click.option("--no-estimate", is_flag=True, help="End with 6 where the device is absent, instead of estimating.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help=RECORD)
@click.option("--simulate", type=click.Path(dir_okay=False, exists=True, path_type=Path), help=SIMULATE)
@click.option(
    "--trial-timeout", "trial_timeout_s", type=click.FloatRange(min=1.0), help="Seconds after which a trial is hung."
)
@click.option("--jobs", type=click.IntRange(1), help="Compiling processes.  [default: the host's cores]")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def tune(context: click.Context, /, **asked: Any) -> int:
    """Find the best launch parameters of a device, and keep them in its tuned file.

    Every config is judged by the numerical gate before it is timed, in a process that may hang or crash. Finalists are
    raced against the default by turns; it is replaced only by what is at least 3 % faster and beyond the noise.
    Finished trials lie in a journal: a run that was cut off goes on where it stopped. For a card that is not here the
    space is compiled and ranked by a model of costs, and entries are marked as estimated. Ends with 5 when a default
    was wrong and with 6 when the device was lost.
    """
    if context.invoked_subcommand is not None:
        return 0
    return _tune(**asked)


def _tune(
    device: str | None,
    modes: Sequence[str],
    ops: Sequence[str],
    names: Sequence[str],
    head_sizes: Sequence[int],
    group: int | None,
    kv_heads: int | None,
    dtype: str | None,
    workload: str | None,
    model: Path | None,
    level: str,
    search: Strategy | None,
    budget: str | None,
    seed: int,
    repeats: int,
    target: str,
    require_improvement: bool,
    record: Path | None,
    simulate: Path | None,
    no_estimate: bool,
    trial_timeout_s: float | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    settings = environment.read()
    from kvreg_tuning import effort as efforts
    from kvreg_tuning.planning import HOST_BUDGET_S

    effort = efforts.EFFORTS[level]
    common = Common(
        effort=effort,
        strategy=_strategy(search, effort),
        budget_s=None if budget is None else efforts.seconds(budget),
        seed=seed,
        repeats=repeats,
        home=settings.home,
    )
    _homes(settings.home, simulated=simulate is not None)
    if simulate is not None:
        campaign, load = _replayed(simulate, common), f"recorded in {simulate.name}"
    else:
        on = _device(device, settings)
        shapes, load = _shapes(on, model, head_sizes, group, kv_heads, dtype, workload)
        spaces = _spaces(on, shapes, modes, ops, names, settings)
        if common.budget_s is None and level != "full" and on.platform == "cpu" and workload is None and model is None:
            common = replace(common, budget_s=HOST_BUDGET_S)
        files = _files(on, spaces, settings.home, target)
        if not no_estimate and not _is_here(on):
            return _estimated(on, spaces, files, common, jobs, load, as_json, require_improvement)
        campaign = _measured(on, spaces, files, common, jobs, trial_timeout_s)
    if record is not None:
        _record(record, campaign)
    from kvreg.cli import tune_answers

    return tune_answers.show(campaign, load, as_json, require_improvement)


def _measured(
    on: Device,
    spaces: Sequence[Space],
    files: Callable[[Space], Path],
    common: Common,
    jobs: int | None,
    trial_timeout_s: float | None,
) -> Campaign:
    """Run trials on the device."""
    from kvreg.cli import tune_view
    from kvreg.core.devices import folder_name
    from kvreg.validation import machine as machines
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.runner import WorkerRunner

    machine = machines.machine_for(on.key)
    found = machines.versions(machine, machines.probe(machine))
    versions = {name: str(found[name]) for name in ("triton", "torch", "driver", "card") if found[name] is not None}
    lock = common.home / "tune" / f"{folder_name(on.key)}.lock"
    runner = WorkerRunner(
        machine.place,
        environment=machine.environment,
        jobs=jobs or os.cpu_count() or 1,
        lock=lock,
        trial_timeout_s=trial_timeout_s,
    )
    with _journal(common.home) as journal, runner, tune_view.view(_board(on, common)) as view:
        campaign = Campaign(on, spaces, runner, journal, versions, files, view=view, **common.settings)
        campaign.run()
    return campaign


def _is_here(on: Device) -> bool:
    from kvreg.core.errors import DeviceUnavailable
    from kvreg.validation import machine as machines

    try:
        machines.machine_for(on.key)
    except DeviceUnavailable:
        return False
    return True


def _estimated(
    on: Device,
    spaces: Sequence[Space],
    files: Callable[[Space], Path],
    common: Common,
    jobs: int | None,
    workload: str,
    as_json: bool,
    require_improvement: bool,
) -> int:
    """Rank what compiles for a card that is not here."""
    # A shell may have turned the interpreter on; interpreted kernels compile to nothing. Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "0"
    from kvreg.cli import tune_estimates, tune_view
    from kvreg.validation.compilers import compiler_of
    from kvreg_tuning import costs, estimating

    costs.require_facts(on)
    compiler, target = compiler_of(on, common.home)
    budget_s = common.budget_s or estimating.BUDGET_S
    board = _board(on, replace(common, budget_s=budget_s))
    with tune_view.view(board) as view:
        view.note(f"no {on.key} is here: kernels are compiled for {on.arch} and ranked by a model of costs")
        estimation = estimating.Estimation(
            on,
            spaces,
            replace(compiler, cache=common.home / "cache" / "compiled", jobs=jobs or os.cpu_count() or 1),
            target,
            {space.subject: files(space) for space in spaces},
            view,
            budget_s,
            common.seed,
        )
        estimation.run()
    return tune_estimates.show(estimation, workload, as_json, require_improvement)


def _replayed(path: Path, common: Common) -> Campaign:
    """Replay a recorded space; entries go to this home alone, marked as simulated."""
    from kvreg.cli import tune_view
    from kvreg.core import resolve
    from kvreg.core.devices import folder_name
    from kvreg_tuning import recording
    from kvreg_tuning.campaign import Campaign

    recorded = recording.read(path)
    on = resolve.resolve(recorded.device).device
    target = common.home / "tuned" / f"{folder_name(on.key)}.yaml"
    with _journal(common.home) as journal, tune_view.view(_board(on, common)) as view:
        campaign = Campaign(
            on,
            recorded.spaces,
            recording.Replay(recorded, common.seed),
            journal,
            {**recorded.versions, "recording": path.name},
            lambda space: target,
            view=view,
            source="simulated",
            recorded=recorded,
            **common.settings,
        )
        campaign.run()
    return campaign


def _board(on: Device, common: Common) -> Board:
    from kvreg.cli.tune_view import Board
    from kvreg_tuning.subjects import limit_us

    return Board(lambda subject, bucket: limit_us(subject, bucket, on), common.budget_s)


def _journal(home: Path) -> Journal:
    from kvreg.core import notices
    from kvreg_tuning.journal import Journal

    journal = Journal(home / JOURNAL)
    if journal.set_aside is not None:
        notices.warn(
            f"journal {journal.path} was damaged; it is kept as {journal.set_aside.name}, and a new one begun"
        )
    return journal


def _record(path: Path, campaign: Campaign) -> None:
    from kvreg_tuning import recording
    from kvreg_tuning.journal import Journal

    with Journal(campaign.journal.path) as journal:
        count = recording.write(path, campaign.device.key, campaign.versions, campaign.spaces, journal)
    print(f"{count} trials recorded in {path}", file=sys.stderr)


def _device(asked: str | None, settings: Environment) -> Device:
    from kvreg.core import resolve

    found = resolve.resolve(asked) if asked is not None else resolve.default_device(settings.device)
    return found.device


def _shapes(
    on: Device,
    model: Path | None,
    head_sizes: Sequence[int],
    group: int | None,
    kv_heads: int | None,
    dtype: str | None,
    load_of: str | None,
) -> tuple[Sequence[Shape], str]:
    """Return what is to be tuned for, and the workload's name."""
    from kvreg_tuning import planning, workloads

    load = planning.assumed_workload(on) if load_of is None else workloads.find(load_of)
    if model is None:
        sizes = tuple(dict.fromkeys(head_sizes)) or (HEAD_SIZE,)
        shape = (group or GROUP, kv_heads or KV_HEADS, dtype or "bf16", ("causal",), load)
        return tuple(planning.plain_shapes(sizes, *shape)), load.name
    if head_sizes or group or kv_heads or dtype:
        raise UsageError(
            wrong(
                "--model",
                required="a model alone: it states head sizes, heads and dtype",
                found="one of --head-size, --group, --kv-heads, --dtype",
                remedy="leave them out",
            )
        )
    return workloads.shapes_of(model, load), load.name


def _spaces(
    on: Device,
    shapes: Sequence[Shape],
    modes: Sequence[str],
    ops: Sequence[str],
    names: Sequence[str],
    settings: Environment,
) -> tuple[Space, ...]:
    from kvreg_tuning import planning

    wanted = [mode for each in modes if (mode := asking.parse_mode(each)) is not None]
    return planning.spaces_of(
        on, shapes, modes=wanted, ops=[Op(each) for each in ops], names=names, family=settings.backend
    )


def _strategy(asked: Strategy | None, effort: Effort) -> Strategy:
    """Return the search; where none is asked for and the effort's is not installed, random."""
    from kvreg.core import notices
    from kvreg_tuning import search

    if asked is None and not search.installed(effort.strategy):
        notices.warn("optuna is not installed: configs are tried in random order (pip install 'kvreg[tune]')")
        return "random"
    return asked or effort.strategy


def _files(on: Device, spaces: Sequence[Space], home: Path, target: str) -> Callable[[Space], Path]:
    """Return where the winners of a space go. Raises UsageError for `repo` where there is no checkout."""
    from kvreg.core.devices import folder_name

    name = f"{folder_name(on.key)}.yaml"
    if target == "overlay":
        return lambda space: home / "tuned" / name
    folders = {space.subject: space.tuned_dir for space in spaces}
    for folder in folders.values():
        if folder is None or not any((parent / "pyproject.toml").is_file() for parent in folder.parents):
            raise UsageError(
                wrong(
                    "--write repo",
                    required="kvreg running from its checkout",
                    found=f"an installed package at {folder.parent if folder else 'no folder'}",
                    remedy="run it from a checkout, or take --write overlay",
                )
            )
    return lambda space: (space.tuned_dir or home) / name


def _homes(home: Path, *, simulated: bool) -> None:
    """Keep replayed results apart: raises UsageError where a home would hold both kinds."""
    mark = home / "SIMULATED"
    if not simulated:
        if mark.exists():
            raise UsageError(
                wrong("KVREG_HOME", required="a home of real results", found=f"the mark {mark}", remedy="name another")
            )
        return
    if not os.environ.get("KVREG_HOME", "").strip() or (home.exists() and any(home.iterdir()) and not mark.exists()):
        raise UsageError(
            wrong(
                "--simulate",
                required="a KVREG_HOME of its own, a new or empty folder",
                found=str(home),
                remedy='KVREG_HOME="$(mktemp -d)" kvreg tune --simulate ...',
            )
        )
    home.mkdir(parents=True, exist_ok=True)
    mark.touch()


@tune.command()
@click.option("--device", help="Only this device.")
@click.option(
    "--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="Only this one; may be repeated."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw times against trials into this file."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def report(device: str | None, head_sizes: Sequence[int], plot: Path | None, as_json: bool) -> int:
    """Show what the journal knows: trials by result, best and default of each bucket, and what it cost."""
    settings = environment.read()
    from kvreg.cli import tune_report

    key = None if device is None else _device(device, settings).key
    path = settings.home / JOURNAL
    if not path.exists():
        raise UsageError(
            wrong("tune report", required="a journal", found=f"no {path}", remedy="`kvreg tune` begins one")
        )
    with _journal(settings.home) as journal:
        rows = tune_report.rows(journal.trials(), key, tuple(head_sizes))
    if plot is not None:
        tune_report.draw(rows, plot)
    tune_report.show(rows, path, as_json)
    return 0


@tune.command()
@click.argument("recording", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Replays of each effort.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def regret(recording: Path, seeds: int, as_json: bool) -> int:
    """Replay a recorded space under every effort: how much slower is the winner than the best recorded config."""
    environment.read()
    from kvreg.cli import tune_regret

    tune_regret.show(tune_regret.study(recording, seeds), recording, as_json)
    return 0
