"""What a tuning run shows while it runs: a live board on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvreg_tuning.outcomes import MEANING, RESULTS
from kvreg_tuning.subjects import text_of

if TYPE_CHECKING:
    from kvreg.core.buckets import Bucket
    from kvreg_tuning.outcomes import Trial
    from kvreg_tuning.subjects import Config, Subject

Limit = Callable[["Subject", "Bucket"], "float | None"]
"""The time that the card's bandwidth alone allows, microseconds."""

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Board:
    """How far a subject is; pure bookkeeping that both views draw."""

    limit: Limit
    budget_s: float | None = None
    began: float = field(default_factory=time.monotonic)
    subject: Subject | None = None
    buckets: tuple[Bucket, ...] = ()
    planned: int = 0
    tried: set[str] = field(default_factory=set)
    known: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    default: dict[str, Trial] = field(default_factory=dict)
    best: dict[str, Trial] = field(default_factory=dict)
    racing: str = ""

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Forget the last subject."""
        self.subject, self.buckets, self.planned = subject, tuple(buckets), (planned or 0) + 1
        self.tried, self.known, self.racing = set(), 0, ""
        self.counts = Counter({"constraint": pruned} if pruned else {})
        self.default, self.best = {}, {}

    def add(self, trial: Trial, known: bool) -> bool:
        """Count a trial; returns whether it is the best so far of its bucket."""
        self.tried.add(text_of(trial.config))
        self.known += known
        self.counts[trial.result] += 1
        self.default.setdefault(trial.bucket, trial)
        best = self.best.get(trial.bucket)
        if trial.us is None or (best is not None and best.us is not None and best.us <= trial.us):
            return False
        self.best[trial.bucket] = trial
        return True

    @property
    def left(self) -> str:
        """The time that is left of the budget, or the time that has passed."""
        passed = time.monotonic() - self.began
        if self.budget_s is None:
            return f"{passed:.0f} s"
        return f"{max(0.0, self.budget_s - passed):.0f} s left"

    @property
    def outcomes(self) -> str:
        """Trials by result: 31 ok, 4 slow, 2 wrong result."""
        return outcomes(self.counts)

    def row(self, bucket: Bucket) -> tuple[str, ...]:
        """Return bucket, default, best, gain, share of the card's limit, launch parameters."""
        default, best = self.default.get(str(bucket)), self.best.get(str(bucket))
        assert self.subject is not None
        limit = self.limit(self.subject, bucket)
        gain = "-"
        if default is not None and best is not None and default.us and best.us:
            gain = f"{1 - best.us / default.us:+.1%}"
        share = f"{limit / best.us:.0%}" if limit and best is not None and best.us else "-"
        config = changed(best.config, default.config) if best is not None and default is not None else "-"
        return (str(bucket), _us(default), _us(best), gain, share, config)


def outcomes(counts: Mapping[str, int]) -> str:
    """Return trials by result in one line, what worked last."""
    words = [f"{counts[name]} {MEANING[name]}" for name in reversed(RESULTS) if counts.get(name)]
    return ", ".join(words) or "none yet"


def changed(config: Config, default: Config) -> str:
    """Return what a config changes of the default; `default` where it is that."""
    differing = {name: value for name, value in config.items() if default.get(name) != value}
    return text_of(differing) if differing else "default"


def _us(trial: Trial | None) -> str:
    if trial is None:
        return "-"
    return MEANING[trial.result] if trial.us is None else f"{trial.us:.4g} us"


class TuneLines:
    """For pipes and logs, on stderr."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._shown = 0.0

    def __enter__(self) -> TuneLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Say what is tuned."""
        self.board.begin(subject, buckets, planned, pruned)
        where = ", ".join(map(str, buckets))
        self.note(f"{subject}: {self.board.planned} configs in {where}; {pruned} pruned ({self.board.left})")
        self._shown = time.monotonic()

    def trial(self, trial: Trial, known: bool) -> None:
        """Show a new best, what failed, and now and then how far it is."""
        default_known = trial.bucket in self.board.default
        best = self.board.add(trial, known)
        if trial.us is None and trial.result != "constraint":
            self.note(f"{trial.bucket}: {MEANING[trial.result]}: {text_of(trial.config)}: {trial.reason}")
        elif best and default_known and not known:
            self.note(f"{trial.bucket}: {trial.us:.4g} us: {text_of(trial.config)}")
        if time.monotonic() - self._shown > LINE_EVERY_S:
            self._shown = time.monotonic()
            done = f"{len(self.board.tried)} of {self.board.planned} configs, {self.board.known} trials known"
            self.note(f"{done}: {self.board.outcomes} ({self.board.left})")

    def race(self, bucket: Bucket, contestants: int) -> None:
        """Say that finalists run."""
        self.note(f"{bucket}: {contestants - 1} finalists against the default ({self.board.left})")

    def note(self, text: str) -> None:
        """Show a line."""
        from kvreg.core.notices import one_line

        print(one_line(text), file=sys.stderr, flush=True)


class TuneLive:
    """For a terminal: one board that is drawn anew, failures above it."""

    def __init__(self, board: Board) -> None:
        from rich.console import Console
        from rich.live import Live

        self.board = board
        self._live = Live(
            console=Console(stderr=True, highlight=False), get_renderable=self._draw, refresh_per_second=4
        )

    def __enter__(self) -> TuneLive:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, subject: Subject, buckets: Sequence[Bucket], planned: int | None, pruned: int) -> None:
        """Begin a board."""
        self.board.begin(subject, buckets, planned, pruned)

    def trial(self, trial: Trial, known: bool) -> None:
        """Count; print a failed one above the board."""
        self.board.add(trial, known)
        if trial.result in ("wrong", "crash", "timeout") and not known:
            self.note(f"{trial.bucket}: {MEANING[trial.result]}: {text_of(trial.config)}: {trial.reason}")

    def race(self, bucket: Bucket, contestants: int) -> None:
        """Say on the board that finalists run."""
        self.board.racing = f"; {contestants - 1} finalists of {bucket} race the default"

    def note(self, text: str) -> None:
        """Print a line above the board."""
        from kvreg.core.notices import one_line

        self._live.console.print(one_line(text), markup=False, soft_wrap=True)

    def _draw(self) -> Any:
        from rich import box
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        board = self.board
        if board.subject is None:
            return Text("starting")
        done = len(board.tried)
        head = f"{board.subject}: {done} of {board.planned} configs, {board.left}{board.racing}"
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("bucket", "default", "best", "gain", "of limit", "best launch parameters"):
            drawn.add_column(column)
        for bucket in board.buckets:
            drawn.add_row(*map(Text, board.row(bucket)))
        bar = ProgressBar(total=max(board.planned, 1), completed=done, width=60)
        return Group(Text(head), bar, drawn, Text(board.outcomes))


def view(board: Board) -> TuneLines | TuneLive:
    """Return what suits stderr."""
    return TuneLive(board) if sys.stderr.isatty() else TuneLines(board)
