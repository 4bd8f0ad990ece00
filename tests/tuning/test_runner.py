"""Trials on a real device: one clock at a time, and two tuners that share a home."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import yaml

from kvreg.core.buckets import Bucket
from kvreg_tuning.effort import EFFORTS
from kvreg_tuning.outcomes import failure
from kvreg_tuning.runner import Compilation, WorkerRunner
from kvreg_tuning.subjects import Subject
from kvreg_tuning.worker import Outcome

SUBJECT = Subject("cpu", "torch-none-write@1", "write", "none", 32, 4, 2)


def test_a_device_is_timed_by_one_process_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "tune/cpu.lock"
    lock.parent.mkdir()
    found: list[Outcome] = []

    with open(lock, "a") as held, WorkerRunner("cpu", lock=lock) as runner:

        def bench() -> None:
            found.append(runner.bench(SUBJECT, Bucket(64, 0), {"rows": 64}, EFFORTS["quick"], None, 60.0))

        bench()  # starts the process, so that nothing but the lock makes the next one wait
        fcntl.flock(held, fcntl.LOCK_EX)  # as another tuner does while its clock runs
        timing = threading.Thread(target=bench)
        timing.start()
        timing.join(2.0)
        waited = timing.is_alive()
        fcntl.flock(held, fcntl.LOCK_UN)
        timing.join(60.0)

    assert waited
    assert [each.status for each in found] == ["ok", "ok"], found
    assert found[1].value["us"] > 0


def test_configs_are_compiled_side_by_side_and_answered_in_their_order() -> None:
    # A place that is not plainly `cpu` is a card to the runner: it compiles in processes of their own.
    configs = [{"rows": 16}, {}, {"rows": 32}, {"rows": 64}]

    with WorkerRunner("cpu:0", jobs=2) as runner:
        wanted = [Compilation(SUBJECT, (Bucket(64, 0),), config) for config in configs]
        ahead, too_late = runner.ahead(wanted, 60.0), runner.ahead(wanted, 0.0)
        outcomes = runner.compile(SUBJECT, [Bucket(64, 0)], configs, 60.0)

    assert (ahead, too_late) == ([True] * 4, [False] * 4)
    assert [each.status for each in outcomes] == ["ok", "error", "ok", "ok"]
    assert outcomes[1].error_type == "KeyError"
    assert failure(outcomes[1], "compile") == ("compile", outcomes[1].error)


def test_two_tuners_of_one_home_leave_the_winners_of_both(tmp_path: Path, command: Any) -> None:
    def asked(head_size: int) -> tuple[str, ...]:
        shape = ("--head-size", str(head_size), "--kv-heads", "2", "--workload", "t64", "--effort", "quick")
        return ("tune", "--device", "cpu", "--mode", "none", "--op", "write", *shape)

    running = [command.start(*asked(head_size), home=tmp_path) for head_size in (32, 64)]
    ends = [each.communicate(timeout=120)[1] for each in running]

    assert [each.returncode for each in running] == [0, 0], ends
    entries = yaml.safe_load((tmp_path / "tuned/cpu.yaml").read_text())["entries"]
    assert sorted(each["head_size"] for each in entries) == [32, 64]
