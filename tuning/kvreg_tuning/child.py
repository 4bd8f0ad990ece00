"""The worker's side: `python -m kvreg_tuning.child REQUESTS RESULTS LIFELINE`, started by `kvreg_tuning.worker` only.

Reads tasks from the descriptor REQUESTS and answers on RESULTS. For each task two frames go out: `started` once the
function is imported (from here on the driver's watchdog counts) and `ok` or `error` with the result.

A second process of the same group, the guard, waits for the driver's end of LIFELINE to close, which happens however
the driver ends, and then kills the group. It is a process and no thread because a hung compiler or driver call may
hold the interpreter's lock, and no parent-death signal because that one fires when the *thread* that started the
worker ends.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from kvreg_tuning import frames

TEXT_LIMIT = 20_000
"""Characters of an error's text and of its traceback that are sent; a compiler may put a whole program into one."""


def _guard(lifeline: int, *others: int) -> None:
    """Fork the guard process; returns in the worker only."""
    if os.fork():
        os.close(lifeline)
        return
    for descriptor in others:
        os.close(descriptor)
    # SIGINT from a terminal goes to the driver, which decides; the guard must outlive it to do its work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hangup = select.poll()
    hangup.register(lifeline, 0)
    while not any(happened & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, happened in hangup.poll()):
        pass
    os.killpg(0, signal.SIGKILL)


def load(task: str) -> Callable[..., Any]:
    """Return the function that `module:function` names."""
    module, _, name = task.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def describe(error: BaseException) -> dict[str, str]:
    """Return an error as text: objects inside it need not be picklable, nor its __str__ work."""
    try:
        message = str(error)
    except Exception as second:
        message = f"(its message cannot be read: {type(second).__name__})"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = ""
    return {"type": type(error).__name__, "message": message[:TEXT_LIMIT], "traceback": trace[-TEXT_LIMIT:]}


def serve(requests: int, results: int) -> None:
    """Answer tasks until the driver closes its end."""
    frames.send(results, {"kind": "ready", "pid": os.getpid()})
    while True:
        try:
            request = frames.receive(requests)
        except EOFError:
            return
        try:
            function = load(request["task"])
            frames.send(results, {"kind": "started"})
            value = function(**request["arguments"])
            answer = {"kind": "ok", "value": value}
            frames.send(results, answer)
        except BaseException as error:  # SystemExit too: a task that ends the interpreter is an error of the task
            frames.send(results, {"kind": "error", **describe(error)})
        sys.stdout.flush()


def main() -> None:
    """Run as the worker process."""
    requests, results, lifeline = map(int, sys.argv[1:4])
    # Programs that a task starts must not keep the pipes open after the worker is gone.
    for descriptor in (requests, results, lifeline):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _guard(lifeline, requests, results)
    serve(requests, results)


if __name__ == "__main__":
    main()
