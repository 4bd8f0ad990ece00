"""Running a bench: what is kept is not measured again, and what ends a process is a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvreg.bench.driver import Driver
from kvreg.bench.shapes import SMOKE
from kvreg.bench.subjects import Planned, Refusal, Subject, plan
from kvreg.core import resolve
from kvreg.core.modes import Mode
from kvreg_tuning.child import load
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

CPU = resolve.resolve("cpu").device
DECODE, WRITE = SMOKE[0], SMOKE[3]


class Here:
    """Runs tasks in this process; says what it ran."""

    def __init__(self, most: int = 100, ends: Mapping[str, str] | None = None) -> None:
        self.most, self.ends, self.ran = most, ends or {}, list[str]()

    def __call__(self, tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Outcome]]:
        for index, task in enumerate(tasks[: self.most]):
            subjects = [each["name"] for each in task.arguments.get("subjects", ())]
            self.ran.append("+".join(subjects) or task.function.rpartition(":")[2])
            status = next((status for name, status in self.ends.items() if name in subjects), None)
            if status is not None:
                yield index, Outcome(status, error=f"{status} of the process")  # type: ignore[arg-type]
            else:
                yield index, Outcome("ok", value=load(task.function)(**task.arguments))


class Kept:
    """A journal in memory, whose keys and values are text as in a file."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    def get(self, identity: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        text = self.lines.get(json.dumps(identity, sort_keys=True))
        return None if text is None else json.loads(text)

    def keep(self, identity: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
        self.lines[json.dumps(identity, sort_keys=True)] = json.dumps(found)


class Seen:
    """A view that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[tuple[str, int, int]] = []

    def stage(self, name: str, total: int, done: int) -> None:
        self.stages.append((name, total, done))

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        self.notes.append(f"{subject}: {line['status']}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def driver(runs: Here, journal: Kept, view: Seen | None = None) -> Driver:
    return Driver("cpu", "cpu", None, runs, lambda outcome: None, view or Seen(), journal)


def planned(shape=WRITE) -> Planned:
    return plan(shape, CPU, [Mode.NONE], every=True, vllm=False)


def test_what_is_in_the_journal_is_not_measured_again() -> None:
    journal, first, second = Kept(), Here(), Here()

    before = driver(first, journal).run([planned()])
    view = Seen()
    after = driver(second, journal, view).run([planned()])

    assert first.ran == ["read_bandwidth", "torch-none-write@1"]
    assert second.ran == []
    assert view.stages == [("bench", 1, 1)]
    assert after.to_json() == before.to_json()


def test_a_bench_that_is_cut_off_has_the_rows_that_were_measured() -> None:
    found = driver(Here(most=2), Kept()).run([planned(WRITE), planned(DECODE)])

    assert [(each.shape.name, len(each.rows)) for each in found.shapes] == [("smoke write", 1), ("smoke decode", 0)]


def test_kernels_whose_process_ended_are_taken_one_by_one_and_the_one_to_blame_is_a_row() -> None:
    runs, journal, view = Here(ends={"SDPA bf16, dense": "timeout"}), Kept(), Seen()

    shape, _ = driver(runs, journal, view).run([planned(DECODE), planned(WRITE)]).shapes

    assert {row.kernel: row.status for row in shape.rows} == {
        "torch-none-decode@1": "ok",
        "SDPA bf16, dense": "timeout",
    }
    both = "torch-none-decode@1+SDPA bf16, dense"
    # The next shape is done first: two processes at once would time each other.
    assert runs.ran[1:] == [both, "torch-none-write@1", "torch-none-decode@1", "SDPA bf16, dense"]
    assert any("taken one by one" in note for note in view.notes)
    again = Here()
    driver(again, journal).run([planned(DECODE)])
    assert again.ran == ["torch-none-decode@1+SDPA bf16, dense"]  # what failed is tried again


def test_a_kernel_that_may_end_its_process_has_one_of_its_own() -> None:
    own = planned(DECODE)
    peer = Subject("flashinfer", "none", "FlashInfer bf16, tensor cores")
    runs = Here(ends={peer.name: "crash"})

    (shape,) = driver(runs, Kept()).run([Planned(DECODE, (*own.subjects, peer))]).shapes

    assert runs.ran[-1] == peer.name
    assert {row.kernel: row.status for row in shape.rows}[peer.name] == "crash"
    assert sum(row.is_timed for row in shape.rows) == 2


def test_without_a_bandwidth_rows_have_times_and_no_share() -> None:
    class NoBandwidth(Here):
        def __call__(self, tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Outcome]]:
            for index, outcome in super().__call__(tasks, workers):
                yield index, Outcome("error", error="no memory") if index == 0 else outcome

    view = Seen()
    refusal = Refusal("int4_per_token_head", "for want of evidence")
    (shape,) = driver(NoBandwidth(), Kept(), view).run([Planned(WRITE, planned().subjects, (refusal,))]).shapes

    timed, refused = shape.rows
    assert (timed.status, shape.share(timed)) == ("ok", None)
    assert (refused.status, refused.detail) == ("refused", "for want of evidence")
    assert "read bandwidth: error: no memory" in view.notes[0]
