"""Several workers over one list."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvreg_tuning.pool import Task, run_all

TASKS = """
import os, time
def double(number): return 2 * number
def fail(number): os._exit(number)
def wait(path):
    open(path + str(os.getpid()), "w").close()
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_every_task_has_its_outcome_in_spite_of_a_crash() -> None:
    tasks = [Task("pool_tasks:double", {"number": n}, 20) for n in range(6)]
    tasks[2] = Task("pool_tasks:fail", {"number": 9}, 20)

    outcomes = dict(run_all(tasks, workers=2))

    assert sorted(outcomes) == list(range(6))
    assert [outcomes[n].value for n in (0, 1, 3, 4, 5)] == [0, 2, 6, 8, 10]
    assert outcomes[2].status == "crash"
    assert "exit code 9" in outcomes[2].error


def test_leaving_early_kills_what_runs(tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    tasks = [Task("pool_tasks:double", {"number": 1}, 20), *(Task("pool_tasks:wait", {"path": f"{mark}."}, 600),) * 3]
    outcomes = run_all(tasks, workers=2)
    assert next(outcomes)[0] == 0
    end = time.monotonic() + 30
    while not (running := list(tmp_path.glob("runs.*"))) and time.monotonic() < end:
        time.sleep(0.05)

    begun = time.monotonic()
    outcomes.close()

    assert running
    assert time.monotonic() - begun < 10
    for note in running:
        assert not Path(f"/proc/{note.name.removeprefix('runs.')}/exe").exists()


def test_no_task_gives_no_outcome() -> None:
    assert list(run_all([], workers=4)) == []
