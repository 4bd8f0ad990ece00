"""`kvreg tune`: find the best launch parameters of a device's variants, gate first, and keep them in a tuned file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import tune_runs
from kvreg.cli.once import Group
from kvreg.core import asking, environment
from kvreg.core.errors import UsageError, wrong
from kvreg.core.requests import DTYPES, Op

if TYPE_CHECKING:
    from kvreg.core.devices import Device
    from kvreg.core.environment import Environment
    from kvreg_tuning.effort import Strategy
    from kvreg_tuning.spaces import Space
    from kvreg_tuning.workloads import Shape

HEAD_SIZE = 128
GROUP, KV_HEADS = 4, 8
"""What select assumes, too."""

LEVELS = ("quick", "normal", "full")
SEARCHES = ("random", "optuna", "exhaustive")
WORKLOAD = (
    "chat, long-context, batch-serving, one bucket (b1-c131072, t8192), or a YAML file of buckets. Default: batch 32"
    " and context 8192, as select assumes; on cpu a few small buckets of int4, for 100 s at most."
)
MODEL = "A Hugging Face model's folder: its head sizes, groups and longest context."
EFFORT = "How much is tried; docs/tuning.md has the numbers."
SEARCH = "How the next config is chosen.  [default: the effort's; random where optuna is not installed]"
REPEATS = "Race the finalists so often, to see how sure the winner is; the first race counts."
RECORD = "Write every trial to this file (.jsonl.gz), for --simulate."
SIMULATE = "Replay a recorded space and run nothing; needs a KVREG_HOME of its own."


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
    from kvreg_tuning.planning import HOST_BUDGET_S, HOST_MODE

    effort = efforts.EFFORTS[level]
    common = tune_runs.Common(
        effort=effort,
        strategy=tune_runs.strategy(search, effort),
        budget_s=None if budget is None else efforts.seconds(budget),
        seed=seed,
        repeats=repeats,
        home=settings.home,
    )
    tune_runs.homes(settings.home, simulated=simulate is not None)
    if simulate is not None:
        campaign, load = tune_runs.replayed(simulate, common), f"recorded in {simulate.name}"
    else:
        on = _device(device, settings)
        shapes, load = _shapes(on, model, head_sizes, group, kv_heads, dtype, workload)
        if on.platform == "cpu" and workload is None and model is None:  # a first try, of what is told nothing
            modes = modes or (() if names else (HOST_MODE,))
            if common.budget_s is None and level != "full":
                common = replace(common, budget_s=HOST_BUDGET_S)
        spaces = _spaces(on, shapes, modes, ops, names, settings)
        files = tune_runs.files(on, spaces, settings.home, target)
        if not no_estimate and not tune_runs.is_here(on):
            return tune_runs.estimated(on, spaces, files, common, jobs, load, as_json, require_improvement)
        campaign = tune_runs.measured(on, spaces, files, common, jobs, trial_timeout_s)
    if record is not None:
        tune_runs.record(record, campaign)
    from kvreg.cli import tune_answers

    return tune_answers.show(campaign, load, as_json, require_improvement)


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
    path = settings.home / tune_runs.JOURNAL
    if not path.exists():
        raise UsageError(
            wrong("tune report", required="a journal", found=f"no {path}", remedy="`kvreg tune` begins one")
        )
    with tune_runs.open_journal(settings.home) as journal:
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
