"""Several workers over one list."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvreg_tuning.pool import Task, run_all

TASKS = """
import os, time
def double(number): return 2 * number
def where(): return os.getpid()
def sight():
    time.sleep(0.2)
    return os.getpid(), os.environ["CARD"], os.environ["SHARED"]
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


def test_a_skipped_task_never_runs_and_says_why() -> None:
    tasks = [Task("pool_tasks:double", {"number": 1}, 20), Task("pool_tasks:fail", {"number": 9}, 20)]

    outcomes = dict(run_all(tasks, workers=1, skip=lambda index: "gave up" if index == 1 else None))

    assert outcomes[0].value == 2
    assert (outcomes[1].status, outcomes[1].error) == ("skipped", "gave up")


def test_the_deadline_ends_the_list_and_kills_what_runs(tmp_path: Path) -> None:
    tasks = [Task("pool_tasks:double", {"number": 1}, 20), Task("pool_tasks:wait", {"path": f"{tmp_path}/runs."}, 600)]
    begun = time.monotonic()

    outcomes = list(run_all(tasks, workers=1, deadline=begun + 3))

    assert [index for index, _ in outcomes] == [0]
    assert 3 <= time.monotonic() - begun < 15
    for note in tmp_path.glob("runs.*"):
        assert not Path(f"/proc/{note.name.removeprefix('runs.')}/exe").exists()


def test_a_bundle_runs_in_order_in_one_process() -> None:
    tasks = [Task("pool_tasks:where", {}, 20, bundle=f"bundle {n // 3}") for n in range(9)]

    outcomes = list(run_all(tasks, workers=3))

    places = {index: outcome.value for index, outcome in outcomes}
    for first in (0, 3, 6):
        assert len({places[index] for index in range(first, first + 3)}) == 1
        finished = [index for index, _ in outcomes if first <= index < first + 3]
        assert finished == sorted(finished)


def test_workers_take_what_is_their_own_by_turns_and_share_the_rest() -> None:
    tasks = [Task("pool_tasks:sight", {}, 20) for _ in range(12)]
    own = ({"CARD": "0"}, {"CARD": "1", "SHARED": "mine"})

    outcomes = run_all(tasks, workers=3, environment={"CARD": "all", "SHARED": "yes"}, own=own)
    sights = {tuple(outcome.value) for _, outcome in outcomes}

    assert len({worker for worker, *_ in sights}) == len(sights) == 3, "a worker sees one card, as long as it lives"
    assert sorted(seen for _, *seen in sights) == [["0", "yes"], ["0", "yes"], ["1", "mine"]]


def test_no_task_gives_no_outcome() -> None:
    assert list(run_all([], workers=4)) == []
