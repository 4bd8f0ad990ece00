"""What a validation shows while it runs: a live bar on a terminal, one plain line a subject when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from kvreg.core.notices import one_line


class Lines:
    """For pipes and logs, on stderr: a line for each stage, each failure, and every tenth part of a stage."""

    def __init__(self) -> None:
        self._name = ""
        self._total = self._done = self._shown = self._failed = 0
        self._began = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def stage(self, name: str, total: int, done: int) -> None:
        """Say that a stage begins."""
        self._name, self._total, self._done, self._shown, self._failed = name, total, done, done, 0
        self._began = time.monotonic()
        known = f", {done} known from the journal" if done else ""
        self._say(f"{name}: {total} part{'' if total == 1 else 's'}{known}")

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Count a part; show it when it failed."""
        self._done += 1
        if line["status"] != "ok":
            self._failed += 1
            self._say(f"{self._name}: {subject}: {line['status']}: {line.get('error', '')}")
        if self._done == self._total or self._done - self._shown >= max(1, self._total // 10):
            self._shown = self._done
            failed = f", {self._failed} failed" if self._failed else ""
            self._say(f"{self._name}: {self._done} of {self._total}{failed}, {time.monotonic() - self._began:.0f} s")

    def note(self, text: str) -> None:
        """Show a line."""
        self._say(text)

    def _say(self, text: str) -> None:
        print(one_line(text), file=sys.stderr, flush=True)


class Bar:
    """For a terminal: one bar a stage, failures above it."""

    def __init__(self) -> None:
        # rich costs 50 ms, which a pipe need not pay.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[subject]}"),
            console=Console(stderr=True, highlight=False),
        )
        self._task: Any = None
        self._name = ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str, total: int, done: int) -> None:
        """Begin a bar."""
        self._name = name
        self._task = self._progress.add_task(name, total=total, completed=done, subject="")

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Move the bar; print a failed part above it."""
        if line["status"] != "ok":
            self.note(f"{self._name}: {subject}: {line['status']}: {line.get('error', '')}")
        if self._task is not None:
            self._progress.update(self._task, advance=1, subject=subject)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(one_line(text), markup=False, soft_wrap=True)


def view() -> Lines | Bar:
    """Return what suits stderr."""
    return Bar() if sys.stderr.isatty() else Lines()
