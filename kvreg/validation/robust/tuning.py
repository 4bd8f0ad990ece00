"""A whole tuning run over a space in which configs lie, read out of bounds, never end and cannot be compiled.

The run is that of `kvreg tune`: its planning, search, worker processes, gate, timing, race, journal and tuned file, in
a home of its own. It must end in its budget with the fastest right config, every planted trial typed in the journal,
and the device must serve the next task.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core import installed, resolve
from kvreg.core.buckets import Bucket
from kvreg.core.requests import Op
from kvreg.core.tuned import file_name
from kvreg.core.tuned_files import EntryRecord, read
from kvreg.validation.robust.findings import Finding, judged, skipped
from kvreg.validation.robust.planted import KNOB, NAME, Kind, plant, portable
from kvreg_tuning.campaign import Campaign
from kvreg_tuning.effort import EFFORTS
from kvreg_tuning.journal import Journal
from kvreg_tuning.outcomes import Result, Trial
from kvreg_tuning.planning import plain_shapes, spaces_of
from kvreg_tuning.runner import WorkerRunner
from kvreg_tuning.subjects import Subject, text_of
from kvreg_tuning.worker import POISONED, Outcome, Worker
from kvreg_tuning.workloads import Workload

if TYPE_CHECKING:
    from kvreg.validation.unproven import Place

HEAD, GROUP = 64, 4
COMPILERS = 2
"""Compiling processes: each starts torch, and the seven configs have five kernels among them."""
GRACE_S = 30.0
"""A run that has not ended so long after its budget is killed: it hangs itself."""
NEXT_S = 60.0
"""For the next task: a fresh context on the card."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run at a place is given, and the work that it is tuned for."""

    bucket: Bucket
    kv_heads: int
    trial_s: float
    """For each part of a trial; the config that never ends costs it once."""
    budget_s: float


LIMITS = {
    "card": Limits(Bucket(8, 4096), 8, 15.0, 90.0),
    "interpreter": Limits(Bucket(1, 256), 1, 60.0, 600.0),
    "cpu": Limits(Bucket(1, 256), 2, 4.0, 60.0),
}
"""For a card. Trial: on an H200 the slowest of 601 compilations of an int4 decode took 10.8 s, sixteen side by side,
and the first gate of a process 1.4 s (the recording in tests/tuning). Budget: five starts
of torch with CUDA of 5 to 8 s (the device's process, its two replacements, two compilers), a compilation of 5 s, the
15 s of the trial that hangs, 10 s for gates, timing and race: 55 to 70 s, and a quarter of it to spare. A run on an
H200 took 45.3 s.

A gate of three launches took the interpreter up to 22 s, plain torch a tenth of one (two busy cores)."""


NEEDS_S = LIMITS["card"].budget_s
"""Of a card."""


class Printed:
    """A view that prints what a run has found, for whoever must look why it went wrong."""

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Print the subject."""
        print(f"{subject}: {planned} configs beside the default", flush=True)

    def trial(self, trial: Trial, known: bool) -> None:
        """Print a trial."""
        print(f"{text_of(trial.config)}: {trial.result} after {trial.seconds:.1f} s {trial.reason}", flush=True)

    def race(self, bucket: Bucket, contestants: int) -> None:
        """Print the size of a race."""
        print(f"{bucket}: {contestants - 1} finalists", flush=True)

    def note(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)


def tune(device: str, place: str, home: str, bucket: str, kv_heads: int, trial_s: float, budget_s: float) -> None:
    """Tune the planted variant and leave journal and tuned file in `home`; runs where the plug-in is installed."""
    on, folder = resolve.resolve(device).device, Path(home)
    load = Workload("planted", {Op.DECODE: (Bucket.parse(bucket),)})
    shapes = tuple(plain_shapes((HEAD,), GROUP, kv_heads, "bf16", ("causal",), load))
    runner = WorkerRunner(place, jobs=COMPILERS, lock=folder / "tune" / "device.lock", trial_timeout_s=trial_s)
    with Journal(_journal(folder)) as journal, runner:
        Campaign(
            on,
            spaces_of(on, shapes, names=(NAME,)),
            runner,
            journal,
            installed.versions(("torch", "triton")),
            lambda space: _tuned(folder, on.key),
            EFFORTS["quick"],
            "random",
            Printed(),
            budget_s=budget_s,
        ).run()


@dataclass(frozen=True, slots=True)
class Winner:
    """What a tuned entry says."""

    kind: Kind
    us: float | None
    default_us: float | None
    e: float | None
    """The largest error that the gate saw; None where it saw none."""

    @classmethod
    def of(cls, entry: EntryRecord) -> Winner:
        """Read an entry."""
        return cls(_kind(entry.config), entry.latency_us, entry.default_latency_us, entry.gate.get("e"))

    def __str__(self) -> str:
        return f"{self.kind.word} wins with {self.us} us, default {self.default_us} us"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended, as its files show it."""

    limits: Limits
    end: Outcome
    """Of the run itself."""
    trials: tuple[Trial, ...]
    """Those of the journal."""
    winners: tuple[Winner, ...]
    """The entries of the tuned file."""
    next: Outcome
    """Of the next task on the device."""

    def __str__(self) -> str:
        counts = Counter(str(each.result) for each in self.trials)
        results = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        winners = ", ".join(map(str, self.winners)) or "no winner"
        took = f"{self.end.elapsed_s:.1f} s of a budget of {self.limits.budget_s:g}"
        return f"{len(self.trials)} trials ({results}) in {took}; {winners}; then {self.next.status}"


def survived(place: Place, kinds: Sequence[Kind] = tuple(Kind)) -> Finding:
    """Tune a space of these kinds at a place, and give its device another task."""
    right = portable(place.resolution.device.platform)
    if right is None:
        return skipped(f"{place.resolution.device.platform} offers no int4 decode whose launches could be replaced")
    with tempfile.TemporaryDirectory(prefix="kvreg-planted-") as scratch:
        plug_in, home = Path(scratch) / "plug-in", Path(scratch) / "home"
        plant(plug_in, right, place.resolution.device.platform, kinds)
        ran = _run(place, plug_in, home)
    if ran.end.status != "ok":
        print(ran.end.traceback or ran.end.output, file=sys.stderr)
    return judged(str(ran), shortcomings(ran, due_of(place, kinds), cuda=_is_cuda(place)))


def due_of(place: Place, kinds: Sequence[Kind] = tuple(Kind)) -> dict[Kind, Result]:
    """Return how the trial of each kind must end; the interpreter compiles nothing: there a launch raises."""
    ends: Mapping[Kind, Result] = {
        Kind.UNBUILDABLE: "crash" if place.interpreted else "compile",
        Kind.ZEROS: "wrong",
        Kind.OUT_OF_BOUNDS: "crash",
        Kind.FOR_EVER: "timeout",
    }
    return {kind: ends.get(kind, "ok") for kind in kinds}


def shortcomings(ran: Ran, due: Mapping[Kind, Result], *, cuda: bool) -> Iterator[str]:
    """Yield how a run differs from what it must be; on CUDA a bad address is an error that names it."""
    if ran.end.status != "ok":
        yield f"run: required its end, found {ran.end.status} {ran.end.error}"
    if ran.end.elapsed_s > ran.limits.budget_s:
        yield f"run: required an end within {ran.limits.budget_s:g} s, found {ran.end.elapsed_s:.1f} s"
    for kind, result in due.items():
        yield from _of_trials(kind, result, [each for each in ran.trials if _kind(each.config) is kind], cuda)
    yield from _of_winner(ran.winners)
    if ran.next.status != "ok":
        yield f"next task: required an answer of the device, found {ran.next.status} {ran.next.error}"


def _of_trials(kind: Kind, result: Result, trials: Sequence[Trial], cuda: bool) -> Iterator[str]:
    found = "; ".join(f"{each.result} {each.reason}".rstrip() for each in trials) or "none"
    if [each.result for each in trials] != [result]:
        yield f"{kind.word}: required one trial that ends as {result}, found {found}"
    elif cuda and kind is Kind.OUT_OF_BOUNDS and not POISONED.search(found):
        yield f"{kind.word}: required an error of the device, found {found}"


def _of_winner(winners: Sequence[Winner]) -> Iterator[str]:
    found = ", ".join(each.kind.word for each in winners) or "none"
    if found != Kind.ONCE.word:
        yield f"winner: required {Kind.ONCE.word}, the fastest right one, found {found}"
    elif winners[0].e is None:
        yield "winner: required an error that the gate has judged, found none"


def _run(place: Place, plug_in: Path, home: Path) -> Ran:
    limits = LIMITS["card" if place.is_card else place.name]
    device = place.resolution.device.key
    asked = {"device": device, "place": place.torch_device, "home": str(home), "bucket": str(limits.bucket)}
    more = {"kv_heads": limits.kv_heads, "trial_s": limits.trial_s, "budget_s": limits.budget_s}
    environment = {"KVREG_HOME": str(home), "TRITON_INTERPRET": "1" if place.interpreted else "0"}
    with Worker(environment=environment, search_path=(str(plug_in),)) as worker:
        end = worker.run(f"{__name__}:tune", asked | more, timeout_s=limits.budget_s + GRACE_S)
        after = worker.run("kvreg.validation.work:probe", {"place": place.torch_device}, timeout_s=NEXT_S)
    with Journal(_journal(home)) as journal:
        trials = tuple(each.trial for each in journal.trials())
    tuned = _tuned(home, device)
    return Ran(limits, end, trials, tuple(map(Winner.of, read(tuned).entries)) if tuned.exists() else (), after)


def _kind(config: Mapping[str, int]) -> Kind:
    return Kind(config[KNOB])


def _is_cuda(place: Place) -> bool:
    return place.is_card and place.resolution.device.platform == "cuda"


def _journal(home: Path) -> Path:
    return home / "tune" / "journal.sqlite"


def _tuned(home: Path, device: str) -> Path:
    return home / "tuned" / file_name(device)
