"""How long a call takes on a card: graph replay over rotating buffers, medians with their spread.

Three methods, named in every `Measurement`:
- `graph`: the calls are captured into one CUDA graph and replayed, so no host time is in the figure. The default.
- `delay`: eager calls behind a kernel that keeps the card busy while the host queues them; where capture is refused.
- `host`: `perf_counter` around the call; for the cpu device.

A decode of a few hundred kilobytes would be timed out of the L2 cache if it read the same bytes each time. The caller
hands in several calls over different buffers (`rotations` says how many), together larger than three times the L2.
"""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Method = Literal["graph", "delay", "host"]
Call = Callable[[], object]
Sampler = Callable[[], float]
"""Takes one sample: the time of one call in microseconds."""

L2_FACTOR = 3
"""Buffers of one measurement together exceed this many times the L2: with less, hits were seen on an H200."""

REPLAYS = 20
WARM_UP = 3
DELAY_CYCLES = 20_000_000
"""About 10 ms of a card's clock."""
MIN_SAMPLE_US = 20.0
"""Events resolve about half a microsecond; a shorter sample repeats its calls until it lasts this long."""

READ_BYTES = 4 << 30
"""Buffer of the read-bandwidth measurement: 80 times the H200's L2 of 50 MB."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one call, and how sure it is."""

    us: float
    """Median over the samples, microseconds."""
    spread: float
    """Width of the middle half of the samples over their median; 0.01 is a quiet card."""
    samples: int
    method: Method


def summary(samples_us: Sequence[float], method: Method) -> Measurement:
    """Return median and spread of samples; raises ValueError without one or with one that is no positive number."""
    if not samples_us or not all(math.isfinite(sample) and sample > 0 for sample in samples_us):
        raise ValueError(f"timing: required positive samples, found {list(samples_us)!r}")
    middle = statistics.median(samples_us)
    if len(samples_us) < 2:
        return Measurement(middle, 0.0, len(samples_us), method)
    low, _, high = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Measurement(middle, (high - low) / middle, len(samples_us), method)


def rotations(bytes_per_call: int, l2_bytes: int | None, *, most: int = 256) -> int:
    """Return over how many buffers calls must rotate so that none finds its bytes in the L2.

    An unknown L2 (None) counts as 256 MB, more than any card of the device table has.
    """
    needed = L2_FACTOR * (l2_bytes if l2_bytes is not None else 256 << 20)
    return max(2, min(most, needed // max(1, bytes_per_call) + 1))


def measure(calls: Sequence[Call], device: str, *, replays: int = REPLAYS) -> Measurement:
    """Return the time of one of `calls` (which do the same work over different buffers) on a torch device.

    On `cuda` the calls are replayed from a graph, and where capture is refused, run eagerly behind a delay.
    """
    if device == "cpu":
        return host_time(calls, samples=replays)
    try:
        return graph_time(calls, replays=replays)
    except CaptureRefused:
        return delayed_time(calls, samples=replays)


class CaptureRefused(Exception):
    """A call does something that a graph cannot hold."""


def graph_time(calls: Sequence[Call], *, replays: int = REPLAYS) -> Measurement:
    """Return the time of one call by replaying a graph that holds each of `calls` once."""
    sample = graph_sampler(calls)
    return summary([sample() for _ in range(replays)], "graph")


def delayed_time(calls: Sequence[Call], *, samples: int = REPLAYS, delay_cycles: int = DELAY_CYCLES) -> Measurement:
    """Return the time of one eager call: the card sleeps about 10 ms first, while the host queues all calls."""
    sample = delayed_sampler(calls, delay_cycles)
    return summary([sample() for _ in range(samples)], "delay")


def host_time(
    calls: Sequence[Call], *, samples: int = REPLAYS, clock: Callable[[], float] = time.perf_counter
) -> Measurement:
    """Return the time of one call by the host's clock (seconds); right for the cpu device only."""
    sample = host_sampler(calls, clock)
    return summary([sample() for _ in range(samples)], "host")


def sampler(calls: Sequence[Call], device: str) -> tuple[Sampler, Method]:
    """Return what takes one more sample of `calls` each time it is called, and its method.

    Several samplers taken by turns see the same clocks and the same neighbours, which two measurements do not.
    """
    if device == "cpu":
        return host_sampler(calls), "host"
    try:
        return graph_sampler(calls), "graph"
    except CaptureRefused:
        return delayed_sampler(calls), "delay"


def graph_sampler(calls: Sequence[Call]) -> Sampler:
    """Capture each of `calls` once into one graph; a sample replays it and gives the time of one call.

    Raises CaptureRefused for calls that a graph cannot hold.
    """
    import torch

    for call in calls:  # compiles, loads modules and allocates before the capture
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            calls[0]()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError as error:
        raise CaptureRefused(str(error)) from error
    for _ in range(WARM_UP):
        graph.replay()
    torch.cuda.synchronize()
    repeats = _repeats(_timed_us(graph.replay, 1))
    return lambda: _timed_us(graph.replay, repeats) / (repeats * len(calls))


def delayed_sampler(calls: Sequence[Call], delay_cycles: int = DELAY_CYCLES) -> Sampler:
    """Run each of `calls` once; a sample queues all of them behind a kernel that keeps the card busy."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()

    def sample() -> float:
        torch.cuda._sleep(delay_cycles)
        return _timed_us(lambda: [call() for call in calls], 1) / len(calls)

    return sample


def host_sampler(calls: Sequence[Call], clock: Callable[[], float] = time.perf_counter) -> Sampler:
    """Run the first of `calls` once; samples take them in turn."""
    calls[0]()
    turn = itertools.cycle(calls)

    def sample() -> float:
        call = next(turn)
        begun = clock()
        call()
        return max((clock() - begun) * 1e6, 1e-3)

    return sample


def read_bandwidth(device: str, *, size: int = READ_BYTES) -> float:
    """Return the measured read bandwidth in bytes per second: a float32 sum over `size` bytes.

    This sum is the limit that `fraction_of_limit` refers to (4.33e12 to 4.45e12 on the H200s of docs/performance.md).
    """
    import torch

    values = torch.randn(size // 4, device=device, dtype=torch.float32)
    taken = measure([lambda: values.sum()], device, replays=10)
    return float(values.nbytes / (taken.us * 1e-6))


def sm_clock(index: int = 0) -> int | None:
    """Return the multiprocessor clock in MHz as nvidia-smi reads it, None where that does not work.

    To be asked right after a measurement, before the card goes idle; the answer takes a tenth of a second or more.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, f"--id={index}", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
        return int(answer.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _repeats(us: float) -> int:
    return max(1, math.ceil(MIN_SAMPLE_US / max(us, 0.1)))


def _timed_us(work: Callable[[], Any], repeats: int) -> float:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
