"""A worker: one process group that runs tasks, and that can be killed whatever it is doing.

    with Worker() as worker:
        outcome = worker.run("package.module:function", {"head_size": 96}, timeout_s=60)

A task is `module:function` with JSON-able keyword arguments and a JSON-able result. It may hang, crash, print, fork
or end the interpreter: the driver gets an `Outcome` and the next `run` finds a fresh process where one is needed.
The process stays alive between tasks, so that torch, Triton and the card's context are paid for once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from kvreg_tuning import frames

Status = Literal["ok", "timeout", "crash", "error", "skipped"]
"""What became of a task; `skipped` ones were never given to a worker."""

START_TIMEOUT_S = 120.0
"""For starting Python and importing the task's module; torch with CUDA takes about ten seconds on a cold disk."""

REAP_TIMEOUT_S = 20.0
"""A process that the kernel cannot end (a card that hangs in its driver) is left behind after this time."""

POLL_S = 0.05
TAIL_BYTES = 4_000

POISONED = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|device-side assert|illegal instruction"
    r"|invalid program counter|CUDA_ERROR_|CUDA error|HIP error|hipError|UR_RESULT_ERROR|level_zero|DEVICE_LOST"
    r"|uncorrectable ECC|fallen off the bus|no CUDA-capable device|out of memory",
    re.IGNORECASE,
)
"""Errors after which a process's card context answers nothing but errors (CUDA calls them sticky), or after which
its memory is in doubt: the process is replaced before the next task. One replacement too many costs seconds."""

LOST = re.compile(
    r"DEVICE_LOST|fallen off the bus|no CUDA-capable device|No CUDA GPUs are available|uncorrectable ECC"
    r"|hipErrorNoDevice|busy or unavailable|system not yet initialized|Found no NVIDIA driver"
)
"""Errors that say the card itself is gone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one task."""

    status: Status
    value: Any = None
    """The result of an `ok` task."""
    error: str = ""
    """One line for the others: the exception, the signal or exit code, the limit."""
    error_type: str = ""
    """Class name of the exception of an `error`."""
    traceback: str = ""
    output: str = field(default="", repr=False)
    """The end of what the task printed."""
    elapsed_s: float = 0.0
    """From the start of the function itself, imports not counted."""

    @property
    def device_lost(self) -> bool:
        """Whether the text says that the card is gone."""
        return self.status != "ok" and bool(LOST.search(self.error) or LOST.search(self.traceback))


class Worker:
    """One process group; `run` starts it when needed. Not to be shared between threads."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        search_path: tuple[str, ...] = (),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """`environment` is laid over this process's; `search_path` goes before its sys.path."""
        self._environment = {
            **os.environ,
            **(environment or {}),
            # The worker sees the modules that its driver sees, however they came on the driver's path.
            "PYTHONPATH": os.pathsep.join([*search_path, *(entry for entry in sys.path if entry)]),
        }
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._results = self._lifeline = -1
        self._frames = frames.Assembler()
        self._printed: IO[bytes] | None = None
        self._stop: threading.Event | None = None
        self.starts = 0
        """Processes started so far: one more than the replacements."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id, which is the group's too; None while no process runs."""
        return self._process.pid if self._process else None

    def run(
        self,
        task: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        stop: threading.Event | None = None,
    ) -> Outcome:
        """Run one task; the limit counts from the call of the function. Setting `stop` ends it as a timeout."""
        self._stop = stop
        started: float | None = None
        try:
            if self._process is not None and self._gone():
                self.close()  # it died while idle; that is no fault of this task
            if self._process is None:
                self._start()
            assert self._printed is not None
            os.ftruncate(self._printed.fileno(), 0)
            frames.send(self._requests, {"task": task, "arguments": dict(arguments or {})})
            answer = self._wait(self._start_timeout_s, "import of the task")
            if answer["kind"] == "started":
                started = time.monotonic()
                answer = self._wait(timeout_s, "task")
        except (_Ended, BrokenPipeError) as end:
            elapsed = time.monotonic() - started if started is not None else 0.0
            return self._ended(end, elapsed)
        elapsed = time.monotonic() - started if started is not None else 0.0
        output = self._tail()
        if answer["kind"] == "ok":
            return Outcome("ok", value=answer["value"], output=output, elapsed_s=elapsed)
        outcome = Outcome(
            "error",
            error=f"{answer['type']}: {answer['message']}".split("\n", 1)[0][:500],
            error_type=answer["type"],
            traceback=answer["traceback"],
            output=output,
            elapsed_s=elapsed,
        )
        if POISONED.search(answer["message"]):
            self.close()
        return outcome

    def close(self) -> None:
        """End the process and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        for descriptor in (self._requests, self._results, self._lifeline):
            os.close(descriptor)
        self._frames = frames.Assembler()
        if self._printed:
            self._printed.close()
            self._printed = None

    def _start(self) -> None:
        child_requests, self._requests = os.pipe()
        self._results, child_results = os.pipe()
        child_lifeline, self._lifeline = os.pipe()
        os.set_blocking(self._results, False)
        self._printed = tempfile.TemporaryFile(prefix="kvreg-worker-")  # noqa: SIM115 (closed by close)
        # Both processes share the file's position: appending writes and positioned reads leave it out of the game.
        flags = fcntl.fcntl(self._printed, fcntl.F_GETFL)
        fcntl.fcntl(self._printed, fcntl.F_SETFL, flags | os.O_APPEND)
        ends = (child_requests, child_results, child_lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kvreg_tuning.child", *map(str, ends)],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=ends,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            for descriptor in ends:
                os.close(descriptor)
        self.starts += 1
        self._wait(self._start_timeout_s, "start of the worker")

    def _wait(self, limit_s: float, what: str) -> dict[str, Any]:
        """Return the next frame; raises _Ended when the limit passes or the process is gone."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._results, selectors.EVENT_READ)
            while True:
                # Asked before reading: what a process wrote before it died is read after its death.
                gone = self._gone()
                closed = self._read() if ready.select(0) else False
                try:
                    frame = self._frames.take()
                except frames.BrokenFrame as error:
                    raise _Ended("crash", f"{what}: {error}") from None
                if frame is not None:
                    return dict(frame)
                if gone or closed:
                    raise _Ended("crash", what)
                if self._stop is not None and self._stop.is_set():
                    raise _Ended("timeout", f"{what}: stopped by the driver")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _Ended("timeout", f"{what}: still running after {limit_s:g} s; its process group was killed")
                ready.select(min(POLL_S, left))

    def _read(self) -> bool:
        """Take what the pipe holds; True when its other end is closed."""
        while True:
            try:
                piece = os.read(self._results, 1 << 20)
            except BlockingIOError:
                return False
            if not piece:
                return True
            self._frames.feed(piece)

    def _gone(self) -> bool:
        # WNOWAIT leaves the dead process in the table, so that its group id stays ours until the group is killed.
        assert self._process is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _ended(self, end: Exception, elapsed_s: float) -> Outcome:
        process, printed = self._process, self._tail()
        assert process is not None
        timed_out = isinstance(end, _Ended) and end.status == "timeout"
        alive = not timed_out and not _exited_within(process, 1.0)
        self.close()
        if timed_out:
            return Outcome("timeout", error=str(end), output=printed, elapsed_s=elapsed_s)
        cause = "closed its pipe and was killed" if alive else _how_it_ended(process.returncode)
        return Outcome("crash", error=f"{end or 'worker'}: {cause}", output=printed, elapsed_s=elapsed_s)

    def _tail(self) -> str:
        """Return the end of what the present task printed."""
        if self._printed is None:
            return ""
        size = os.fstat(self._printed.fileno()).st_size
        start = max(0, size - TAIL_BYTES)
        return os.pread(self._printed.fileno(), size - start, start).decode(errors="replace")


class _Ended(Exception):
    """The process gives no answer any more."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def _exited_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.01)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(REAP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Nothing more can be done from here; the next task shows whether the card still answers.
        print(f"kvreg: process {process.pid} did not end within {REAP_TIMEOUT_S:g} s of SIGKILL", file=sys.stderr)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "did not end after SIGKILL"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


__all__ = ["LOST", "POISONED", "Outcome", "Status", "Worker"]
