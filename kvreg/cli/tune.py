"""`kvreg tune`: find the best launch parameters of a device's variants, gate first, and keep them in a tuned file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import tune_runs
from kvreg.cli.finite import Finite
from kvreg.cli.input_file import InputFile, NamedPath
from kvreg.cli.once import Group
from kvreg.cli.output_file import OutputFile
from kvreg.core import asking, environment
from kvreg.core.buckets import MOST_AT_ONCE
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
    "chat, long-context, batch-serving, bench (the decodes and writes of `kvreg bench`, with heads of their own), one"
    " bucket (b1-c131072, t8192), or a YAML file of buckets. Default: batch 32 and context 8192, as select assumes; on"
    " cpu a few small buckets of int4, for 100 s at most."
)
MODEL = "A Hugging Face model's folder: its head sizes, groups and longest context."
EFFORT = "How much is tried; docs/tuning.md has the numbers."
SEARCH = "How the next config is chosen.  [default: the effort's; random where optuna is not installed]"
REPEATS = "Race the finalists so often, to see how sure the winner is; the first race counts."
RECORD = "Write every trial to this file (.jsonl.gz), for --simulate."
SIMULATE = "Replay a recorded space and run nothing; needs a KVREG_HOME of its own."


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one call, by the names that click gives them."""

    device: str | None
    modes: Sequence[str]
    ops: Sequence[str]
    names: Sequence[str]
    head_sizes: Sequence[int]
    group: int | None
    kv_heads: int | None
    dtype: str | None
    workload: str | None
    model: Path | None
    level: str
    search: Strategy | None
    budget: str | None
    seed: int
    repeats: int
    target: str
    require_improvement: bool
    no_estimate: bool
    record: Path | None
    simulate: Path | None
    trial_timeout_s: float | None
    jobs: int | None
    as_json: bool


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
@click.option("--group", type=click.IntRange(1, MOST_AT_ONCE), help="Query heads for each KV head.  [default: 4]")
@click.option("--kv-heads", type=click.IntRange(1, MOST_AT_ONCE), help="KV heads.  [default: 8]")
@click.option("--dtype", type=click.Choice(DTYPES), help="The model's dtype.  [default: bf16]")
@click.option("--workload", help=WORKLOAD)
@click.option("--model", type=NamedPath(file_okay=False, exists=True, path_type=Path), help=MODEL)
@click.option("--effort", "level", type=click.Choice(LEVELS), default="normal", show_default=True, help=EFFORT)
@click.option("--search", type=click.Choice(SEARCHES), help=SEARCH)
@click.option("--budget", help="Time after which no further trial begins: 90s, 10m, 1.5h; a bare number is seconds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the search.")
@click.option("--repeat-races", "repeats", type=click.IntRange(1), default=1, show_default=True, help=REPEATS)
@click.option("--write", "target", type=click.Choice(["overlay", "repo"]), default="overlay", show_default=True,
              help="Where winners go: KVREG_HOME, or the checkout.")  # fmt: skip
@click.option("--require-improvement", is_flag=True, help="End with 7 when no bucket got faster.")
@click.option("--no-estimate", is_flag=True, help="End with 6 where the device is absent, instead of estimating.")
@click.option("--record", type=OutputFile(), help=RECORD)
@click.option("--simulate", type=InputFile(), help=SIMULATE)
@click.option("--trial-timeout", "trial_timeout_s", type=Finite(min=1.0), help="Seconds after which a trial is hung.")
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
    return _tune(Asked(**asked))


def _tune(asked: Asked) -> int:
    settings = environment.read()
    common = _common(asked, settings)
    if asked.simulate is not None:
        campaign, load = tune_runs.replayed(asked.simulate, asked.device, common), f"recorded in {asked.simulate.name}"
    else:
        tune_runs.require_home(settings.home, simulated=False)
        on = _device(asked.device, settings)
        shapes, load = _shapes(asked, on)
        spaces = _spaces(asked, on, shapes, settings)
        files = tune_runs.files(on, spaces, settings.home, asked.target)
        tune_runs.require_files(on, map(files, spaces), asked.target)
        common = replace(common, budget_s=common.budget_s or _assumed_budget(asked, on))
        if asked.no_estimate:
            tune_runs.require_here(on)
        elif not tune_runs.is_here(on):
            estimation = tune_runs.estimated(on, spaces, files, common, asked.jobs)
            from kvreg.cli import tune_estimates

            return tune_estimates.show(estimation, load, asked.as_json, asked.require_improvement)
        campaign = tune_runs.measured(on, spaces, files, common, asked.jobs, asked.trial_timeout_s)
    if asked.record is not None:
        tune_runs.record(asked.record, campaign)
    from kvreg.cli import tune_answers

    return tune_answers.show(campaign, load, asked.as_json, asked.require_improvement)


def _common(asked: Asked, settings: Environment) -> tune_runs.Common:
    from kvreg_tuning import effort as efforts

    effort = efforts.EFFORTS[asked.level]
    return tune_runs.Common(
        effort=effort,
        search=asked.search,
        budget_s=None if asked.budget is None else efforts.seconds(asked.budget),
        seed=asked.seed,
        repeats=asked.repeats,
        home=settings.home,
    )


def _device(asked: str | None, settings: Environment) -> Device:
    from kvreg.core import resolve

    found = resolve.resolve(asked) if asked is not None else resolve.default_device(settings.device)
    return found.device


def _is_first_try(asked: Asked, on: Device) -> bool:
    """Whether the host's processor is to be tuned for nothing in particular."""
    return on.platform == "cpu" and asked.workload is None and asked.model is None


def _assumed_budget(asked: Asked, on: Device) -> float | None:
    from kvreg_tuning.planning import HOST_BUDGET_S

    return HOST_BUDGET_S if _is_first_try(asked, on) and asked.level != "full" else None


def _shapes(asked: Asked, on: Device) -> tuple[Sequence[Shape], str]:
    """Return what is to be tuned for, and the workload's name."""
    from kvreg.bench import workload as bench
    from kvreg_tuning import planning, workloads

    heads = asked.group or asked.kv_heads or asked.dtype
    if asked.workload == bench.NAME:
        _require_none("--workload bench", "heads and dtype", "--model, --group, --kv-heads", asked.model or heads)
        return bench.shapes_to_tune(asked.head_sizes), bench.NAME
    if asked.workload is None:
        load = planning.assumed_workload(on)
    else:
        load = workloads.find(asked.workload, also=(bench.NAME,))
    if asked.model is None:
        sizes = tuple(dict.fromkeys(asked.head_sizes)) or (HEAD_SIZE,)
        shape = (asked.group or GROUP, asked.kv_heads or KV_HEADS, asked.dtype or "bf16", ("causal",), load)
        return tuple(planning.plain_shapes(sizes, *shape)), load.name
    _require_none(
        "--model", "head sizes, heads and dtype", "--head-size, --group, --kv-heads", asked.head_sizes or heads
    )
    return workloads.shapes_of(asked.model, load), load.name


def _require_none(option: str, states: str, others: str, given: object) -> None:
    """Raise UsageError where what an option states is stated by others, too."""
    if given:
        required = f"a {option.split()[0].strip('-')} alone: it states {states}"
        raise UsageError(wrong(option, required=required, found=f"one of {others}, --dtype", remedy="leave them out"))


def _spaces(asked: Asked, on: Device, shapes: Sequence[Shape], settings: Environment) -> tuple[Space, ...]:
    from kvreg_tuning import planning

    modes = [mode for each in asked.modes if (mode := asking.parse_mode(each)) is not None]
    if _is_first_try(asked, on) and not (asked.modes or asked.names):
        modes = [planning.HOST_MODE]
    ops = [Op(each) for each in asked.ops]
    return planning.spaces_of(on, shapes, modes=modes, ops=ops, names=asked.names, family=settings.backend)


@tune.command()
@click.option("--device", help="Only this device.")
@click.option(
    "--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="Only this one; may be repeated."
)
@click.option("--plot", type=OutputFile(), help="Draw times against trials into this file.")
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
@click.argument("recording", type=InputFile())
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Replays of each effort.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def regret(recording: Path, seeds: int, as_json: bool) -> int:
    """Replay a recorded space under every effort: how much slower is the winner than the best recorded config.

    Where the recording knows the machine code of its kernels, the choice of the model of costs is held against it too.
    """
    environment.read()
    from kvreg.cli import tune_regret

    tune_regret.show(tune_regret.study(recording, seeds), recording, as_json)
    return 0
