"""Runs pytest with the plugin on a real suite, as its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvreg

SUITES = Path(__file__).parent / "suites"
IMPORTABLE = os.pathsep.join(entry for entry in sys.path if entry and "site-packages" not in entry)


@dataclass(frozen=True)
class Ran:
    """A pytest that has ended."""

    code: int
    output: str
    report: dict[str, Any]

    @property
    def outcomes(self) -> dict[str, str]:
        """Test, without its file -> outcome."""
        return {each["id"].split("::", 1)[1]: each["outcome"] for each in self.report["tests"]}

    def test(self, name: str) -> dict[str, Any]:
        """One test of the report."""
        (found,) = [each for each in self.report["tests"] if each["id"].split("::", 1)[1] == name]
        return found


class Suite:
    """A folder with tests, in which pytest is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\n")

    def take(self, suite: str, name: str) -> None:
        """Put one of `suites` into the folder."""
        shutil.copy(SUITES / suite, self.folder / name)

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *arguments: str, **variables: str) -> Ran:
        """Run pytest with a report."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        code, output = self.plain(f"--kvreg-report={report}", *arguments, **variables)
        return Ran(code, output, json.loads(report.read_text()) if report.exists() else {})

    def plain(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run pytest with the plugin loaded; return exit code and output."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "KVREG_"))}
        home = {"KVREG_HOME": str(self.folder / "home"), "PYTHONPATH": IMPORTABLE}
        # Importing hypothesis takes longer than everything else.
        plugins = ["-p", "kvreg.pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *arguments],
            cwd=self.folder,
            env={**kept, **home, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """An empty suite."""
    assert kvreg.__file__
    return Suite(tmp_path_factory.mktemp("suite"))
