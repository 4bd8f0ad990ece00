"""Host times: what is timed, what is not, and how a busy host shows."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

import pytest

from kvreg.bench import host, host_clock
from kvreg.bench.driver import Driver
from kvreg.bench.subjects import Planned, Refusal, Subject, plan
from kvreg.core import resolve
from kvreg.core.modes import Mode
from kvreg_tuning.child import load
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

CPU = resolve.resolve("cpu").device
WRITE = host.SMOKE[-1]


class View:
    def stage(self, name: str, total: int, done: int) -> None:
        pass

    def advance(self, subject: str, line: object) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def outcomes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Outcome]]:
    for index, task in enumerate(tasks):
        if task.arguments["subject"]["maker"] == "vllm":
            yield index, Outcome("crash", error="killed by SIGSEGV")
        else:
            yield index, Outcome("ok", value=load(task.function)(**task.arguments))


def test_the_wait_for_the_device_is_not_in_the_time_and_nothing_is_collected_meanwhile() -> None:
    collecting: list[bool] = []
    waits: list[int] = []

    def wait() -> None:
        waits.append(len(collecting))
        time.sleep(0.002)

    found = host_clock.time_calls([lambda: collecting.append(gc.isenabled())], wait, seconds=0)

    assert found.calls == host_clock.LEAST_BLOCKS * host_clock.BLOCK
    # Before each block and behind the last; the first call, before the first, is none of them.
    assert waits == [1 + host_clock.BLOCK * number for number in range(host_clock.LEAST_BLOCKS + 1)]
    assert found.us < 500
    assert 0 < found.least <= found.us
    assert collecting == [True] + [False] * found.calls
    assert gc.isenabled()


def test_a_thread_that_has_no_core_while_it_is_timed_shows() -> None:
    asleep = host_clock.time_calls([lambda: time.sleep(0.001)], lambda: None, seconds=0)

    assert asleep.us > 1000
    assert asleep.running < 0.5


def test_each_call_of_a_shape_is_a_row_with_the_load_of_the_host_and_a_crash_is_one_too() -> None:
    of = plan(WRITE, CPU, [Mode.NONE], every=True, vllm=False)
    peer = Subject("vllm", "int8_per_token_head", "vLLM int8")
    asked = Planned(WRITE, (peer, *of.subjects), (Refusal("fp8_per_tensor", "no evidence"),))

    rows = host.run(Driver("cpu", "cpu", None, outcomes, lambda outcome: None, View()), [asked], list(Mode))

    assert [(row.kernel, row.status) for row in rows] == [
        ("torch-none-write@1", "ok"),
        ("", "refused"),
        ("vLLM int8", "crash"),
    ]
    assert rows[0].us > 0
    assert 0 < rows[0].running <= 1.01
    assert rows[0].cores >= 1
    assert rows[0].load >= 0
    assert rows[2].detail == "killed by SIGSEGV"


@pytest.mark.parametrize("table", [host.CARD, host.HOST, host.SMOKE], ids=("card", "host", "smoke"))
def test_the_table_has_decodes_and_writes_of_steps(table: Sequence[host.Shape]) -> None:
    assert {shape.work for shape in table} == {"decode", "write"}
    assert len({shape.name for shape in table}) == len(table)
    if table is host.CARD:
        assert [shape.size for shape in table] == ["32 x 1088", "32 x 8192", "32 tokens", "32 tokens"]
