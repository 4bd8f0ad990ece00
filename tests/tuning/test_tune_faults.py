"""`kvreg tune` on configs that raise, hang, crash and lie: real processes, killed for real. Handed case 11."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

BUDGET_S = 100
WORKLOAD = "schema: 1\nname: planted\ndecode: [b1-c256]\n"


class Bench:
    """A home, a planted plug-in and the command that tunes it."""

    def __init__(self, folder: Path, planted: Any, command: Any, kinds: tuple[int, ...]) -> None:
        self.command = command
        self.home = folder / "home"
        self.journal = self.home / "tune/journal.sqlite"
        (folder / "work.yaml").write_text(WORKLOAD)
        self.arguments = (
            *("tune", "--device", "cpu", "--variant", "planted-none-decode@1", "--head-size", "32", "--kv-heads", "2"),
            *("--workload", str(folder / "work.yaml"), "--effort", "quick", "--budget", f"{BUDGET_S}s"),
            *("--trial-timeout", "4"),
        )
        self.variables = {
            "before": str(planted.plant(folder / "planted")),
            "PLANTED_KINDS": ",".join(map(str, kinds)),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.command.run(*self.arguments, *more, home=self.home, **self.variables)

    def start(self) -> subprocess.Popen[str]:
        return self.command.start(*self.arguments, home=self.home, **self.variables)

    def rows(self) -> list[tuple[int, int, str, str]]:
        """Return (number, kind, result, reason) of the journal's trials; none before it is there."""
        try:
            with sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True) as connection:
                found = connection.execute("SELECT number, config, result, reason FROM trials").fetchall()
        except sqlite3.OperationalError:
            return []
        return [(number, json.loads(config)["kind"], result, reason) for number, config, result, reason in found]

    def wait_for(self, trials: int, process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + 90
        while len(self.rows()) < trials and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        assert len(self.rows()) >= trials, process.communicate()[1] if process.poll() is not None else "too slow"


def test_whatever_its_configs_do_a_killed_run_goes_on_and_ends_in_its_budget_with_the_good_winner(
    tmp_path: Path, planted: Any, command: Any
) -> None:
    kinds = (
        *(planted.RIGHT, planted.SKIPS_LAST, planted.FIRST_HALF, planted.SECOND_HALF, planted.RAISES),
        *(planted.COMPILES_FOR_EVER, planted.ABORTS, planted.HANGS, planted.FASTER),
    )
    bench = Bench(tmp_path, planted, command, kinds)

    killed = bench.start()
    bench.wait_for(3, killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    before = bench.rows()
    began = time.monotonic()
    done = bench.run("--json")

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < BUDGET_S
    after = bench.rows()
    assert after[: len(before)] == before
    assert sorted(kind for _, kind, *_ in after) == list(range(len(kinds)))  # none was tried twice
    found = {kind: (result, reason) for _, kind, result, reason in after}
    assert {kind: result for kind, (result, _) in found.items()} == {
        planted.RIGHT: "ok",
        planted.FASTER: "ok",
        planted.SKIPS_LAST: "wrong",
        planted.FIRST_HALF: "wrong",
        planted.SECOND_HALF: "wrong",
        planted.RAISES: "compile",
        planted.COMPILES_FOR_EVER: "timeout",
        planted.ABORTS: "crash",
        planted.HANGS: "timeout",
    }
    assert "rel_error" in found[planted.SKIPS_LAST][1]
    assert "never written" in found[planted.FIRST_HALF][1]
    assert "never written" in found[planted.SECOND_HALF][1]
    assert "ptxas fatal: planted" in found[planted.RAISES][1]
    assert "SIGABRT" in found[planted.ABORTS][1]
    assert found[planted.COMPILES_FOR_EVER][1].startswith("compile: ")
    assert found[planted.HANGS][1].startswith("gate: ")
    (result,) = json.loads(done.stdout)["results"]
    assert result["winner"]["config"] == {"kind": planted.FASTER}
    assert result["winner"]["gain"] == pytest.approx(0.5, abs=0.2)
    assert {each["config"]["kind"] for each in result["finalists"]} == {planted.RIGHT, planted.FASTER}
    assert entries(bench)[0]["config"] == {"kind": planted.FASTER}


def test_ctrl_c_ends_with_130_and_the_next_call_goes_on(tmp_path: Path, planted: Any, command: Any) -> None:
    bench = Bench(tmp_path, planted, command, (planted.RIGHT, planted.SKIPS_LAST, planted.FASTER))

    running = bench.start()
    bench.wait_for(1, running)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    left = processes_of(bench.home)
    before = bench.rows()
    done = bench.run()

    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert left == []
    assert done.returncode == 0, done.stderr
    assert bench.rows()[: len(before)] == before
    assert sorted(kind for _, kind, *_ in bench.rows()) == sorted((planted.RIGHT, planted.SKIPS_LAST, planted.FASTER))
    assert entries(bench)[0]["config"] == {"kind": planted.FASTER}


def entries(bench: Bench) -> list[dict[str, Any]]:
    return list(yaml.safe_load((bench.home / "tuned/cpu.yaml").read_text())["entries"])


def processes_of(home: Path) -> list[int]:
    """Return the processes that were given this KVREG_HOME and still run."""
    wanted, found = f"KVREG_HOME={home}".encode(), []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            given = Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in given:
            found.append(int(each))
    return found
