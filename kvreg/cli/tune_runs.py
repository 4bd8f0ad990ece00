"""What `kvreg tune` runs: trials on the device, a replay of recorded ones, or estimates for a card elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.cli import extras
from kvreg.cli.asked import require_writable
from kvreg.core.devices import folder_name
from kvreg.core.errors import BadFile, DeviceUnavailable, UnknownDevice, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.cli.tune_view import Board
    from kvreg.core.devices import Device
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.effort import Effort, Strategy
    from kvreg_tuning.estimating import Estimation
    from kvreg_tuning.journal import Journal
    from kvreg_tuning.recording import Recording
    from kvreg_tuning.spaces import Space

JOURNAL = "tune/journal.sqlite"
"""Below KVREG_HOME."""

MARK = "SIMULATED"
"""An empty file in a home whose results are replayed ones."""


@dataclass(frozen=True, slots=True)
class Common:
    """What every run is told, real or replayed."""

    effort: Effort
    search: Strategy | None
    """The strategy that was asked for by name."""
    budget_s: float | None
    seed: int
    repeats: int
    home: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Those of a campaign; warns where the effort's own strategy is not installed."""
        plain = {name: getattr(self, name) for name in ("effort", "budget_s", "seed", "repeats")}
        return {**plain, "strategy": strategy(self.search, self.effort)}


def require_home(home: Path, *, simulated: bool) -> None:
    """Keep replayed results apart: raises UsageError where a home would hold both kinds.

    What every command keeps below `cache` to start fast is no result. Nothing is written; `mark_simulated` does.
    """
    mark = home / MARK
    if not simulated:
        if mark.exists():
            raise UsageError(
                wrong("KVREG_HOME", required="a home of real results", found=f"the mark {mark}", remedy="name another")
            )
        return
    holds_any = home.exists() and any(each.name != "cache" for each in home.iterdir())
    if not os.environ.get("KVREG_HOME", "").strip() or (holds_any and not mark.exists()):
        raise UsageError(
            wrong(
                "--simulate",
                required="a KVREG_HOME of its own, a new or empty folder",
                found=str(home),
                remedy='KVREG_HOME="$(mktemp -d)" kvreg tune --simulate ...',
            )
        )


def mark_simulated(home: Path) -> None:
    """Mark a home as one of replayed results, before the first of them is written."""
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).touch()


def strategy(asked: Strategy | None, effort: Effort) -> Strategy:
    """Return the search; where none is asked for and the effort's is not installed, random."""
    from kvreg.core import notices
    from kvreg_tuning import search

    if asked is None and not search.installed(effort.strategy):
        notices.warn("optuna is not installed: configs are tried in random order (pip install 'kvreg[tune]')")
        return "random"
    return asked or effort.strategy


def files(on: Device, spaces: Sequence[Space], home: Path, target: str) -> Callable[[Space], Path]:
    """Return where the winners of a space go. Raises UsageError for `repo` where there is no checkout."""
    name = f"{folder_name(on.key)}.yaml"
    if target == "overlay":
        return lambda space: home / "tuned" / name
    from kvreg.validation.machine import in_checkout

    for space in spaces:
        in_checkout(space.tuned_dir)
    return lambda space: in_checkout(space.tuned_dir) / name


def require_files(on: Device, paths: Iterable[Path], target: str = "overlay", *, simulated: bool = False) -> None:
    """Raise, before the first trial, where a winner could not be written: BadEnvironment, UsageError, BadFile."""
    from kvreg_tuning.store import require_mergeable

    for path in dict.fromkeys(paths):
        require_writable(path.parent, target)
        require_mergeable(path, on.key, simulated=simulated)


def require_here(on: Device) -> None:
    """Raise DeviceUnavailable where only an estimate could be had, which --no-estimate rules out."""
    if not is_here(on):
        raise DeviceUnavailable(
            wrong(
                f"tune {on.key} --no-estimate",
                required="that card in this machine",
                found="none",
                remedy="run it where the card is, or leave --no-estimate out",
            )
        )


def is_here(on: Device) -> bool:
    """Return whether the device is in this machine."""
    from kvreg.validation import machine as machines

    try:
        machines.machine_for(on.key)
    except DeviceUnavailable:
        return False
    return True


def measured(
    on: Device,
    spaces: Sequence[Space],
    files: Callable[[Space], Path],
    common: Common,
    jobs: int | None,
    trial_timeout_s: float | None,
) -> Campaign:
    """Run trials on the device."""
    from kvreg.cli import tune_view
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
    settings = common.settings  # a warning stands above the table
    with open_journal(common.home) as journal, runner, tune_view.view(_board(on, common)) as view:
        campaign = Campaign(on, spaces, runner, journal, versions, files, view=view, **settings)
        campaign.run()
    return campaign


def estimated(
    on: Device,
    spaces: Sequence[Space],
    files: Callable[[Space], Path],
    common: Common,
    jobs: int | None,
) -> Estimation:
    """Rank what compiles for a card that is not here."""
    # A shell may have turned the interpreter on; interpreted kernels compile to nothing. Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "0"
    from kvreg.cli import tune_view

    with extras.kernels(f"tune {on.key}", "torch and Triton, whose compiler an estimate needs"):
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
    return estimation


def device_of(recorded: Recording, path: Path) -> Device:
    """Return the device that a space was recorded on; raises BadFile for one that is not known."""
    from kvreg.core import resolve

    try:
        return resolve.resolve(recorded.device).device
    except UnknownDevice as error:
        raise BadFile(
            wrong(
                f"recording {path}",
                required="a device that kvreg knows",
                found=repr(recorded.device),
                remedy="`kvreg devices` lists them",
            ),
            candidates=error.candidates,
        ) from None


def replayed(path: Path, asked: str | None, common: Common) -> Campaign:
    """Replay a recorded space; entries go to this home alone, marked as simulated.

    Raises UsageError where `asked`, --device, is another than the recording's.
    """
    from kvreg.cli import tune_view
    from kvreg.core import resolve
    from kvreg_tuning import recording
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.replay import Replay

    recorded = recording.read(path)
    on = device_of(recorded, path)
    if asked is not None and (named := resolve.resolve(asked).device.key) != on.key:
        required = f"{on.key}, whose trials {path.name} has"
        raise UsageError(wrong("--device", required=required, found=named, remedy="leave --device out"))
    require_home(common.home, simulated=True)
    target = common.home / "tuned" / f"{folder_name(on.key)}.yaml"
    require_files(on, [target], simulated=True)
    mark_simulated(common.home)
    settings = common.settings  # a warning stands above the table
    with open_journal(common.home) as journal, tune_view.view(_board(on, common)) as view:
        campaign = Campaign(
            on,
            recorded.spaces,
            Replay(recorded, common.seed),
            journal,
            {**recorded.versions, "recording": path.name},
            lambda space: target,
            view=view,
            source="simulated",
            recorded=recorded,
            **settings,
        )
        campaign.run()
    return campaign


def record(path: Path, campaign: Campaign) -> None:
    """Write what the journal knows of a campaign's spaces to a recording."""
    from kvreg_tuning import recording
    from kvreg_tuning.journal import Journal

    with Journal(campaign.journal.path) as journal:
        count = recording.write(path, campaign.device.key, campaign.versions, campaign.spaces, journal)
    print(f"{count} trials recorded in {path}", file=sys.stderr)


def _board(on: Device, common: Common) -> Board:
    from kvreg.cli.tune_view import Board
    from kvreg_tuning.subjects import limit_us

    return Board(lambda subject, bucket: limit_us(subject, bucket, on), common.budget_s)


def open_journal(home: Path) -> Journal:
    """Open the home's journal; a damaged one is set aside and named."""
    from kvreg.core import notices
    from kvreg_tuning.journal import Journal

    journal = Journal(home / JOURNAL)
    if journal.set_aside is not None:
        notices.warn(
            f"journal {journal.path} was damaged; it is kept as {journal.set_aside.name}, and a new one begun"
        )
    return journal
