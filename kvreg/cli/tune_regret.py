"""`kvreg tune regret`: how good the tuner's choices are, held against a recorded space; no device takes part.

Beside the efforts stands the model of costs, which would choose for a card that is not here, where the recording knows
the machine code of its kernels.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.cli import render, tune_runs

if TYPE_CHECKING:
    from kvreg.core.devices import Device
    from kvreg_tuning.recording import Recording


MODEL = "model"
"""Stands for an effort where the model of costs chose."""


@dataclass(frozen=True, slots=True)
class Regret:
    """One effort's winners of one bucket over several seeds; of the model its one choice."""

    effort: str
    search: str
    subject: str
    bucket: str
    regrets: tuple[float, ...]
    """How much slower each seed's winner was recorded than the best config: 0.05 is 5 %."""
    trials: int
    """Configs that a run tried, on average."""
    seconds: float
    """What the recorded trials of a run took, on average; the model runs none."""


def study(path: Path, seeds: int) -> list[Regret]:
    """Replay a recording under every effort, and ask the model; raises BadFile for what is none."""
    from kvreg_tuning import recording, search
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.effort import EFFORTS
    from kvreg_tuning.journal import IN_MEMORY, Journal
    from kvreg_tuning.replay import Replay

    recorded = recording.read(path)
    device = tune_runs.device_of(recorded, path)
    found = []
    for effort in EFFORTS.values():
        strategy = effort.strategy if search.installed(effort.strategy) else "random"
        campaigns = []
        for seed in range(seeds):
            # Each replay begins from nothing: a journal would hand it the last one's noise.
            with Journal(IN_MEMORY) as journal:
                replay = Replay(recorded, seed)
                campaign = Campaign(
                    device, recorded.spaces, replay, journal, recorded.versions, None, effort, strategy, Quiet(),
                    seed=seed, source="simulated", recorded=recorded,
                )  # fmt: skip
                campaign.run()
                campaigns.append(campaign)
        for place, verdict in enumerate(campaigns[0].verdicts):
            chosen = [each.verdicts[place].winner for each in campaigns]
            values = [
                recorded.regret(verdict.subject, verdict.bucket, winner.config)
                for winner in chosen
                if winner is not None
            ]
            tried = [
                sum(n for name, n in each.verdicts[place].counts.items() if name != "constraint") for each in campaigns
            ]
            found.append(
                Regret(
                    effort.name,
                    strategy,
                    str(verdict.subject),
                    str(verdict.bucket),
                    tuple(value for value in values if value is not None),
                    round(statistics.mean(tried)),
                    statistics.mean(each.runner.clock() for each in campaigns),
                )
            )
    return found + _modelled(recorded, device)


def _modelled(recorded: Recording, device: Device) -> list[Regret]:
    """Return the regret of what the model of costs chooses, by the compiled kernels alone."""
    from kvreg_tuning import choosing

    found = []
    for space in recorded.spaces:
        for estimate in choosing.of_recording(recorded, space, device):
            winner = estimate.winner
            chosen = None if winner is None else recorded.regret(space.subject, estimate.bucket, winner.config)
            found.append(
                Regret(
                    MODEL,
                    "costs",
                    str(space.subject),
                    str(estimate.bucket),
                    () if chosen is None else (chosen,),
                    sum(estimate.counts.values()),
                    0.0,
                )
            )
    return found


class Quiet:
    """A view that shows nothing."""

    def begin(self, *_: object) -> None:
        """Show nothing."""

    def trial(self, *_: object) -> None:
        """Show nothing."""

    def race(self, *_: object) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""


def show(found: Sequence[Regret], path: Path, as_json: bool) -> None:
    """Print the study."""
    if as_json:
        render.document(
            {
                "schema": 1,
                "recording": path.name,
                "results": [
                    {
                        "effort": each.effort,
                        "search": each.search,
                        "subject": each.subject,
                        "bucket": each.bucket,
                        "regrets": list(each.regrets),
                        "trials": each.trials,
                        "recorded_seconds": round(each.seconds, 3),
                    }
                    for each in found
                ],
            }
        )
        return
    render.table(
        (
            "variant and shape",
            "bucket",
            "effort, search",
            "configs tried",
            "mean regret",
            "worst regret",
            "recorded time",
        ),
        [
            (
                each.subject,
                each.bucket,
                f"{each.effort}, {each.search}",
                each.trials,
                f"{statistics.mean(each.regrets):.1%}" if each.regrets else "-",
                f"{max(each.regrets):.1%}" if each.regrets else "-",
                f"{each.seconds:.0f} s",
            )
            for each in found
        ],
    )
    render.line()
    render.line("regret: how much slower the winner was recorded than the best config of the space")
