"""One test in a process of its own, in a process group that is killed when its time is over. Imports no pytest."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

PLUGIN = "kvreg.pytest"
_OF_A_WORKER = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")
"""Variables of the calling pytest that the child must not take for its own."""


class Result(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    CRASH = "crash"
    HANG = "hang"
    SKIPPED = "skipped"
    MISSING = "missing"
    """No test of that id was collected."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one test."""

    result: Result
    seconds: float
    detail: str
    """The error's last line, the signal, or the time limit; empty where it passed."""


def run(node_id: str, *, root: Path, limit_s: float, arguments: Sequence[str] = ()) -> Outcome:
    """Run one test in `root`, from which its id counts, and say how it ended; at most `limit_s` seconds.

    `arguments` are pytest's. No expectation is applied to it. Everything that the test started in its process group is
    killed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="kvreg-") as folder:
        report = Path(folder) / "report.json"
        began = time.monotonic()
        code, output = _pytest([*arguments, f"--kvreg-report={report}", node_id], root, limit_s, Path(folder))
        seconds = time.monotonic() - began
        if code is None:
            return Outcome(Result.HANG, seconds, f"killed after {limit_s:g} s")
        result, detail = _judged(node_id, _document(report), code, output)
        return Outcome(result, seconds, detail)


def collect(arguments: Sequence[str], *, root: Path, limit_s: float) -> tuple[str, ...]:
    """Return the ids that pytest collects in `root`; none where it collects none or cannot."""
    with tempfile.TemporaryDirectory(prefix="kvreg-") as folder:
        report = Path(folder) / "report.json"
        _pytest(["--collect-only", f"--kvreg-report={report}", *arguments], root, limit_s, Path(folder))
        return tuple((_document(report) or {}).get("collected", ()))


def _pytest(arguments: Sequence[str], root: Path, limit_s: float, scratch: Path) -> tuple[int | None, str]:
    """Return (exit code, output); the code is None where the time limit ended it."""
    serial = ["-n0"] if importlib.util.find_spec("xdist") else []  # a project's addopts may hold another -n
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "--color=no"]
    # Naming a platform spares the child a look at the cards: nobody reads the environment in its report.
    command += [f"--rootdir={root}", *serial, "--kvreg-expectations=", "--kvreg-platform=cpu", *arguments]
    output = scratch / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={name: value for name, value in os.environ.items() if not name.startswith(_OF_A_WORKER)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # A process stuck in a driver outlives SIGKILL, so waiting for it must have an end too.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
    return code, output.read_text(encoding="utf-8", errors="replace")


def _document(report: Path) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


_RESULTS = {
    "passed": Result.PASSED,
    "xpassed": Result.PASSED,
    "failed": Result.FAILED,
    "error": Result.FAILED,
    "xfailed": Result.FAILED,
    "skipped": Result.SKIPPED,
}


def _judged(node_id: str, document: Mapping[str, Any] | None, code: int, output: str) -> tuple[Result, str]:
    """Return what a child that ended by itself has shown: a session without a report did not live to its end."""
    if document is None:
        if "error: unrecognized arguments" in output:
            return Result.MISSING, _last_line(output)
        return Result.CRASH, _ended(code)
    for test in document["tests"]:
        if test["id"] == node_id:
            return _RESULTS[test["outcome"]], test["message"]
    return Result.MISSING, _last_line(output)


def _ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code} in the midst of it"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.lower().startswith("error")]
    return (told or lines or ["no output"])[-1]
