"""Real processes: what a user types, what comes out, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Answer:
    """What one command gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A KVREG_HOME of the test's own."""
    return tmp_path / "home"


@pytest.fixture
def kvreg(home: Path, tmp_path: Path) -> Callable[..., Answer]:
    """Run `kvreg` in a process without cards, outside every source tree."""

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*arguments: str, environment: Mapping[str, str] | None = None, before: str = "") -> Answer:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
        variables = {**inherited, "KVREG_HOME": str(home), **(environment or {})}
        code = f"import sys\n{before}\nfrom kvreg.cli.main import run\nrun(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=variables,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run `kvreg` in this process, for what needs no process of its own."""
    from kvreg.cli.main import status

    monkeypatch.setenv("KVREG_HOME", str(home))

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = status(arguments)
        return Answer(code, *capsys.readouterr())

    return run
