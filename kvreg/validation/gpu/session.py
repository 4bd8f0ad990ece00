"""One call of `ci/gpu`: what its stages have found, its log and its archive."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.validation import archive
from kvreg.validation.gpu.asked import Options

ARCHIVE_EVERY_S = 60.0

OK, FAILED, CUT_OFF, LOST, SKIPPED = "ok", "failed", "cut off", "device lost", "skipped"
EXIT = {OK: 0, SKIPPED: 0, CUT_OFF: 4, FAILED: 5, LOST: 6}
"""Status of a stage -> exit code; the largest of a call is the call's."""


@dataclass(slots=True)
class Session:
    """The work folder, the archive, and what every stage has found; a `kvreg.validation.run.View`."""

    options: Options
    work: Path
    archive: Path
    began: float = field(default_factory=time.monotonic)
    stages: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    packed: float = 0.0
    _stage: str = ""
    _done: int = 0
    _total: int = 0
    _shown: float = 0.0

    def stage(self, name: str, total: int, done: int) -> None:
        """Note the parts of a stage."""
        self._stage, self._done, self._total = name, done, total
        self.note(f"{name}: {total} parts, {done} known")

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Count a part, show a failed one, and rewrite the archive now and then."""
        self._done += 1
        if line["status"] != "ok":
            self.note(f"{self._stage}: {subject}: {line['status']}: {line.get('error', '')}")
        now = time.monotonic()
        if now - self._shown > 10:
            self._shown = now
            self.note(f"{self._stage}: {self._done} of {self._total}")
        if now - self.packed > ARCHIVE_EVERY_S:
            self.save()

    def note(self, text: str) -> None:
        """Print a line and keep it in the archive's log."""
        line = f"[{time.monotonic() - self.began:6.1f} s] {text}"
        print(line, flush=True)
        with open(self.work / "log.txt", "a", encoding="utf-8") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Write the results so far and the archive."""
        self.packed = time.monotonic()
        document = {"schema": 1, "command": self.options.command, "stages": self.stages, **self.results}
        (self.work / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        archive.pack(self.work, self.archive)
