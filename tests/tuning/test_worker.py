"""The worker survives whatever a task does; every test here uses real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvreg_tuning.worker import Worker

TASKS = """
import ctypes, os, signal, subprocess, sys, time

def double(number): return 2 * number
def pid(): return os.getpid()
def argument(**arguments): return arguments
def hang(): time.sleep(600)
def hang_in_c(): ctypes.PyDLL(None).sleep(600)          # holds the interpreter's lock
def child_then_hang(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(path, "w").write(str(child.pid))
    time.sleep(600)
def child_then_segfault(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(path, "w").write(str(child.pid))
    ctypes.string_at(0)
def forked_child_then_exit(path):
    # A fork without exec keeps every descriptor open, the worker's pipes included.
    child = os.fork()
    if child == 0:
        time.sleep(600)
    open(path, "w").write(str(child))
    os._exit(3)
def killed_child():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.kill()
    return child.wait()
def quit_at_once(): os._exit(7)
def leave(): sys.exit("so long")
def segfault(): ctypes.string_at(0)
def kill_myself(): os.kill(os.getpid(), signal.SIGKILL)
def garbage():
    os.write(1, b"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02{}" * 100)
    os.write(2, b"\\xff\\xfe not text\\n")
    print("said", flush=True)
    return "fine"
def close_everything(): os.closerange(3, 256); return 1
def many(count): return "x" * count
def unjsonable(): return {"object": object()}
def nan(): return float("nan")

class Unpicklable(Exception):
    def __init__(self): self.lock = __import__("threading").Lock(); super().__init__("holds a lock", self.lock)
    def __reduce__(self): raise TypeError("cannot be pickled")
class Speechless(Exception):
    def __str__(self): raise RuntimeError("no words")
def raise_unpicklable(): raise Unpicklable
def raise_speechless(): raise Speechless
def raise_sticky(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def raise_lost(): raise RuntimeError("No CUDA GPUs are available")
def raise_long(): raise ValueError("first line\\n" + "y" * 200000)
"""


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "worker_tasks.py").write_text(TASKS)
    (folder / "hanging_import.py").write_text("import time\ntime.sleep(600)\n")
    return folder


@pytest.fixture
def worker(tasks: Path):
    with Worker(search_path=(str(tasks),)) as it:
        yield it


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that waits for its reaper does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


def works_again(worker: Worker, starts: int) -> None:
    """The next task gets an answer, from the process number `starts`."""
    assert worker.run("worker_tasks:double", {"number": 4}, timeout_s=20).value == 8
    assert worker.starts == starts


def test_a_result_comes_back_and_the_process_is_kept(worker: Worker) -> None:
    first = worker.run("worker_tasks:pid", timeout_s=20)
    second = worker.run("worker_tasks:pid", timeout_s=20)

    assert first.status == "ok"
    assert first.value == second.value == worker.pid
    assert worker.starts == 1


def test_arguments_and_non_finite_results_arrive_unchanged(worker: Worker) -> None:
    arguments = {"text": "ä\u2028\0", "list": [1, 2.5, None, True], "nested": {"a": {"b": []}}}

    assert worker.run("worker_tasks:argument", arguments, timeout_s=20).value == arguments
    value = worker.run("worker_tasks:nan", timeout_s=20).value
    assert value != value


def test_a_hang_is_a_timeout_and_the_limit_counts_from_the_call(worker: Worker) -> None:
    begun = time.monotonic()

    outcome = worker.run("worker_tasks:hang", timeout_s=0.4)

    assert outcome.status == "timeout"
    assert "still running after 0.4 s" in outcome.error
    assert 0.4 <= outcome.elapsed_s < 3
    assert time.monotonic() - begun < 30
    works_again(worker, starts=2)


def test_a_hang_that_holds_the_interpreter_lock_is_a_timeout(worker: Worker) -> None:
    assert worker.run("worker_tasks:hang_in_c", timeout_s=0.4).status == "timeout"
    works_again(worker, starts=2)


def test_an_import_that_hangs_is_a_timeout(tasks: Path) -> None:
    with Worker(search_path=(str(tasks),), start_timeout_s=3.0) as worker:
        outcome = worker.run("hanging_import:anything", timeout_s=60)

    assert outcome.status == "timeout"
    assert "import of the task" in outcome.error


@pytest.mark.parametrize(
    ("function", "status"),
    [("child_then_hang", "timeout"), ("child_then_segfault", "crash"), ("forked_child_then_exit", "crash")],
)
def test_what_the_task_started_dies_with_it(worker: Worker, tmp_path: Path, function: str, status: str) -> None:
    note = tmp_path / "pid"

    outcome = worker.run(f"worker_tasks:{function}", {"path": str(note)}, timeout_s=1.5)

    assert outcome.status == status
    assert gone_within(int(note.read_text()), 5.0)
    works_again(worker, starts=2)


def test_a_killed_child_of_the_task_is_the_tasks_own_business(worker: Worker) -> None:
    assert worker.run("worker_tasks:killed_child", timeout_s=20).value == -signal.SIGKILL
    works_again(worker, starts=1)


@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("quit_at_once", "exit code 7"),
        ("segfault", "killed by SIGSEGV"),
        ("kill_myself", "killed by SIGKILL"),
        ("close_everything", "exit code 1"),
    ],
)
def test_an_early_end_is_a_crash_that_says_how(worker: Worker, function: str, how: str) -> None:
    outcome = worker.run(f"worker_tasks:{function}", timeout_s=20)

    assert outcome.status == "crash"
    assert how in outcome.error
    works_again(worker, starts=2)


def test_garbage_on_stdout_is_output_and_never_a_result(worker: Worker) -> None:
    outcome = worker.run("worker_tasks:garbage", timeout_s=20)

    assert (outcome.status, outcome.value) == ("ok", "fine")
    assert "said" in outcome.output
    assert worker.run("worker_tasks:double", {"number": 1}, timeout_s=20).output == ""
    works_again(worker, starts=1)


@pytest.mark.parametrize(
    ("function", "error_type", "text"),
    [
        ("raise_unpicklable", "Unpicklable", "holds a lock"),
        ("raise_speechless", "Speechless", "its message cannot be read: RuntimeError"),
        ("unjsonable", "TypeError", "not JSON serializable"),
        ("leave", "SystemExit", "so long"),
        ("no_such_function", "AttributeError", "no_such_function"),
    ],
)
def test_an_exception_of_any_make_is_an_error_and_the_process_lives(
    worker: Worker, function: str, error_type: str, text: str
) -> None:
    outcome = worker.run(f"worker_tasks:{function}", timeout_s=20)

    assert (outcome.status, outcome.error_type) == ("error", error_type)
    assert text in outcome.error
    works_again(worker, starts=1)


def test_a_long_message_is_one_line_and_bounded(worker: Worker) -> None:
    outcome = worker.run("worker_tasks:raise_long", timeout_s=20)

    assert outcome.error == "ValueError: first line"
    assert len(outcome.traceback) <= 20_000


def test_an_error_that_poisons_the_card_context_replaces_the_process(worker: Worker) -> None:
    outcome = worker.run("worker_tasks:raise_sticky", timeout_s=20)

    assert outcome.status == "error"
    assert not outcome.device_lost
    works_again(worker, starts=2)


def test_a_lost_card_is_told_apart(worker: Worker) -> None:
    assert worker.run("worker_tasks:raise_lost", timeout_s=20).device_lost


@pytest.mark.parametrize("count", [1 << 16, 3 << 20])
def test_a_result_larger_than_a_pipe_buffer_arrives_whole(worker: Worker, count: int) -> None:
    assert worker.run("worker_tasks:many", {"count": count}, timeout_s=30).value == "x" * count


def test_an_argument_larger_than_a_pipe_buffer_arrives_whole(worker: Worker) -> None:
    text = "z" * (1 << 20)

    assert worker.run("worker_tasks:argument", {"text": text}, timeout_s=30).value == {"text": text}


def test_a_process_killed_while_idle_is_replaced_unnoticed(worker: Worker) -> None:
    worker.run("worker_tasks:pid", timeout_s=20)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert gone_within(worker.pid, 5.0)

    works_again(worker, starts=2)


DRIVER = """
import sys
from kvreg_tuning.worker import Worker
worker = Worker(search_path=(sys.argv[1],))
worker.run("worker_tasks:pid", timeout_s=60)
print(worker.pid, flush=True)
worker.run("worker_tasks:" + sys.argv[2], {"path": sys.argv[3]} if sys.argv[3] else {}, timeout_s=600)
"""


@pytest.mark.parametrize("function", ["hang", "hang_in_c", "child_then_hang"])
def test_the_worker_ends_when_its_driver_is_killed(tasks: Path, tmp_path: Path, function: str) -> None:
    note = tmp_path / "pid" if function == "child_then_hang" else None
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tasks), function, str(note or "")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    end = time.monotonic() + 20
    while note is not None and not (note.exists() and note.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    assert alive(worker)

    driver.kill()
    driver.wait()
    driver.stdout.close()

    assert gone_within(worker, 5.0)
    if note is not None:
        assert gone_within(int(note.read_text()), 5.0)


def test_an_idle_worker_ends_when_its_driver_leaves_without_closing_it(tasks: Path) -> None:
    script = (
        "import os, sys\nfrom kvreg_tuning.worker import Worker\nworker = Worker(search_path=(sys.argv[1],))\n"
        "print(worker.run('worker_tasks:pid', timeout_s=60).value, flush=True)\nos._exit(0)\n"
    )
    driver = subprocess.run(
        [sys.executable, "-c", script, str(tasks)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )

    assert gone_within(int(driver.stdout), 5.0)


def test_the_environment_is_laid_over_this_one(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "environment_task.py").write_text("import os\ndef read(name): return os.environ.get(name)\n")
    with Worker(environment={"KVREG_TEST_WORD": "here"}, search_path=(str(tmp_path),)) as worker:
        assert worker.run("environment_task:read", {"name": "KVREG_TEST_WORD"}, timeout_s=20).value == "here"
        assert worker.run("environment_task:read", {"name": "PATH"}, timeout_s=20).value == os.environ["PATH"]


def test_closing_twice_and_closing_unused_are_harmless() -> None:
    worker = Worker()
    worker.close()
    worker.close()
    assert worker.pid is None
