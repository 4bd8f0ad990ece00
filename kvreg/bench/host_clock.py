"""The host's time of an eager call: what Python and the launch take until the call returns, the device not waited for.

Calls are taken in blocks, and the device is waited for between two of them, outside of what is timed: a queue of
launches that is full makes the host wait. The garbage collector is off meanwhile.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvreg_tuning.timing import Call

BLOCK = 10
"""Calls between two waits: far fewer launches than the thousand or so that a queue holds."""
BLOCKS, LEAST_BLOCKS = 50, 3
SECONDS = 0.5
"""After which no further block begins, once there are `LEAST_BLOCKS`; the device's work counts, too."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """The host's time of one call."""

    us: float
    """Median."""
    spread: float
    """Width of the middle half of the calls over their median."""
    least: float
    """The shortest call, microseconds."""
    calls: int
    running: float
    """Part of the blocks' time in which this thread had a core; well below 1, others were busy or the call slept."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the host is."""

    load: float
    """Load average of the last minute."""
    cores: int
    runnable: int | None
    """Threads that run or want to, this one among them; None where no /proc/loadavg tells."""


def time_calls(calls: Sequence[Call], wait: Callable[[], None], seconds: float = SECONDS) -> HostTime:
    """Return the time of one of `calls`, taken by turns, the first of them once before; `wait` waits for the device.

    On the cpu device a call does its work before it returns, so that this is in its time.
    """
    calls[0]()
    taken: list[int] = []
    wall = own = 0
    end = time.monotonic() + seconds
    with _no_collection():
        for number in range(BLOCKS):
            if number >= LEAST_BLOCKS and time.monotonic() > end:
                break
            wait()
            begun, begun_own = time.perf_counter_ns(), time.thread_time_ns()
            taken += [_one(calls[place % len(calls)]) for place in range(BLOCK)]
            own += time.thread_time_ns() - begun_own
            wall += time.perf_counter_ns() - begun
        wait()
    middle = statistics.median(taken)
    low, _, high = statistics.quantiles(taken, n=4, method="inclusive")
    return HostTime(middle / 1e3, (high - low) / middle, min(taken) / 1e3, len(taken), own / wall)


def load() -> Load:
    """Return how busy the host is now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        runnable = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        runnable = None
    return Load(os.getloadavg()[0], cores, runnable)


def _one(call: Call) -> int:
    """Return the nanoseconds of one call."""
    begun = time.perf_counter_ns()
    call()
    return max(1, time.perf_counter_ns() - begun)


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
