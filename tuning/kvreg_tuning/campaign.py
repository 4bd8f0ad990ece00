"""One call of `kvreg tune`: its jobs one after the other, each bucket's winner written as soon as it is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.core.devices import Device
from kvreg.core.errors import DeviceUnavailable
from kvreg_tuning import entries
from kvreg_tuning.effort import Effort, Strategy
from kvreg_tuning.journal import Journal
from kvreg_tuning.judging import judge_of
from kvreg_tuning.recording import Recording
from kvreg_tuning.runner import Runner
from kvreg_tuning.session import Session, Verdict, View
from kvreg_tuning.spaces import Space
from kvreg_tuning.store import Merge, merge

LEAST_SHARE_S = 5.0
"""A space gets at least this much of a budget, for its default and a race."""

AHEAD_SHARE = 0.5
"""Part of a budget after which compiling ahead ends: what is compiled by then is tried."""


@dataclass(slots=True)
class Campaign:
    """Spaces of one device, and where their winners go."""

    device: Device
    spaces: Sequence[Space]
    runner: Runner
    journal: Journal
    versions: Mapping[str, str]
    """triton, torch, driver and card, as far as they are known: a result counts for these alone."""
    target: Callable[[Space], Path] | None
    """The tuned file that a space's winners go to; None writes none."""
    effort: Effort
    strategy: Strategy
    view: View
    budget_s: float | None = None
    """Of all spaces together."""
    seed: int = 0
    source: entries.Measured = "measured"
    bandwidth: float | None = None
    """Measured bytes per second of the device; None takes the data sheet's."""
    recorded: Recording | None = None
    """The recording that is replayed; its best trials are what the winners are held against."""
    repeats: int = 1
    """Races of each bucket; the first one counts, the others show how sure it is."""
    verdicts: list[Verdict] = field(default_factory=list)
    repeated: list[Verdict] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)

    def run(self) -> None:
        """Tune every space; `verdicts` and `merges` grow as they end.

        The kernels of all spaces that are tried as a whole are compiled first, by turns. What is left of the budget is
        shared among the spaces by their buckets, so that what one leaves over serves the next, and what the last ones
        leave over those that were cut off before; races are repeated once every space has its winners, as far as it
        goes. Raises DeviceUnavailable when the device is lost.
        """
        begun = self.runner.clock()

        def left_s() -> float:
            return math.inf if self.budget_s is None else self.budget_s - (self.runner.clock() - begun)

        self.journal.note("begun", self._about())
        try:
            sessions = [self._session(space) for space in self.spaces]
            self._compile_ahead(sessions, left_s() * AHEAD_SHARE)
            for number, session in enumerate(sessions):
                open_ones = sum(len(each.buckets) for each in sessions[number:])
                share = max(LEAST_SHARE_S, left_s() * len(session.buckets) / open_ones)
                session.budget_s = None if self.budget_s is None else share
                self._tune(self.spaces[number], session)
            self._go_on(sessions, left_s)
            self._race_again(sessions, left_s)
        except BaseException as error:
            self.journal.note("lost" if isinstance(error, DeviceUnavailable) else "interrupted", {"why": str(error)})
            raise
        self.journal.note("ended", {"buckets": len(self.verdicts)})

    def identity(self, space: Space) -> dict[str, Any]:
        """Return what the results of a space depend on beside its subject."""
        return {"kernel_hash": space.kernel_hash, **self.versions}

    def _session(self, space: Space) -> Session:
        path, simulated = self._path(space), self.source == "simulated"
        return Session(
            subject=space.subject,
            buckets=space.buckets,
            candidates=space.candidates,
            runner=self.runner,
            journal=self.journal,
            identity=self.identity(space),
            effort=self.effort,
            strategy=self.strategy,
            view=self.view,
            stored=entries.stored_configs(path, space.subject, space.kernel_hash, simulated=simulated) if path else {},
            seed=self.seed,
        )

    def _compile_ahead(self, sessions: Sequence[Session], seconds: float) -> None:
        """Compile what the sessions will try, one kernel of each by turns: cut off, each has some of its own."""
        by_turns = itertools.zip_longest(*(session.ahead() for session in sessions))
        wanted = [(session, each) for turn in by_turns for session, each in zip(sessions, turn, strict=True) if each]
        done = self.runner.ahead([each for _, each in wanted], seconds)
        for (session, each), finished in zip(wanted, done, strict=True):
            if not finished:
                session.put_off(each)
        if any(done):
            self.view.note(f"{sum(done)} of {len(done)} kernels compiled ahead of their trials")

    def _tune(self, space: Space, session: Session) -> None:
        path = self._path(space)
        verdicts = session.run()
        self.verdicts += verdicts
        found = [
            entries.entry_of(each, self.device, space.kernel_hash, self.source, self.bandwidth) for each in verdicts
        ]
        written = [each for each in found if each is not None]
        if written and path is not None:
            environment = {name: value for name, value in self.versions.items() if name != "card"}
            simulated = self.source == "simulated"
            judge = judge_of(space.launchable)
            self.merges.append(merge(path, self.device.key, environment, written, judge=judge, simulated=simulated))

    def _go_on(self, sessions: list[Session], left_s: Callable[[], float]) -> None:
        """Tune spaces whose share was too small once more, in what others left; their trials are in the journal."""
        cut_off = {verdict.subject for verdict in self.verdicts if verdict.cut_off}
        again = [number for number, space in enumerate(self.spaces) if space.subject in cut_off]
        for place, number in enumerate(again):
            share = left_s() / (len(again) - place)
            if share < LEAST_SHARE_S:
                return
            space = self.spaces[number]
            sessions[number] = self._session(space)
            sessions[number].budget_s = share
            self.verdicts = [verdict for verdict in self.verdicts if verdict.subject != space.subject]
            self._tune(space, sessions[number])

    def _race_again(self, sessions: Sequence[Session], left_s: Callable[[], float]) -> None:
        for number in range(1, self.repeats):
            for session in sessions:
                if (left := left_s()) <= 0:
                    return
                session.repeat = number
                self.repeated += session.race_again(None if self.budget_s is None else left)

    def _path(self, space: Space) -> Path | None:
        return None if self.target is None else self.target(space)

    def _about(self) -> dict[str, Any]:
        return {
            "device": self.device.key,
            "effort": self.effort.name,
            "budget_s": self.budget_s,
            "spaces": [str(space.subject) for space in self.spaces],
        }
