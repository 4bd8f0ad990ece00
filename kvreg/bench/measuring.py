"""What a bench does inside a worker. Every function takes and returns plain JSON values.

All kernels of a shape that can share a process are timed by turns, so that they see the same clocks and neighbours.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from kvreg.bench import own_calls, peer_calls
from kvreg.bench.contender import Contender
from kvreg.bench.host_clock import load, time_calls
from kvreg.bench.material import Material, build
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Subject
from kvreg.core import resolve
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg_tuning import timing
from kvreg_tuning.worker import POISONED

SAMPLES = 15
SECONDS = 4.0
"""After which a shape is given no further sample, once each of its kernels has `LEAST`."""
LEAST = 3
HOST_SECONDS = 0.05
"""For the host's time of a kernel, which is one column among others here."""
MOST_ROTATIONS = 1024
"""Buffers of the smallest calls: 150 KB each are three times an L2 of 50 MB."""

Plain = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)


def read_bandwidth(place: str, size: int = timing.READ_BYTES) -> float:
    """Return the device's read bandwidth in bytes per second."""
    use(place)
    return timing.read_bandwidth(torch.device(place).type, size=size)


def compile_subject(shape: Plain, subject: Plain, device: str, place: str, peer: str | None) -> None:
    """Launch a subject once over one page that stands for all: whatever its launches compile, is compiled then."""
    use(place)
    of = Shape.from_json(shape)
    material = build(of, place, hollow=of.op is not Op.WRITE)
    contender = _prepare(Subject.from_json(subject), material, resolve.resolve(device).device, 1, peer)
    contender.calls[0]()
    wait(place)


def measure(
    shape: Plain, subjects: Sequence[Plain], device: str, place: str, peer: str | None
) -> list[dict[str, Any]]:
    """Time every subject of a shape; returns a row each, in their order.

    A row is {status, detail} with status `error`, or {status: ok, us, spread, samples, method, bytes, host_us, e}: us
    is a median over samples of one call, `bytes` what the call cannot but move (None for prefill), `host_us` the
    median time of the eager call on the host (None on the cpu, where it is `us`), e is None for a write.
    Raises what has poisoned the process, memory that is not enough included.
    """
    use(place)
    of, on = Shape.from_json(shape), resolve.resolve(device).device
    try:
        return _measure(of, [Subject.from_json(each) for each in subjects], on, place, peer)
    finally:
        release(place)


def _measure(
    shape: Shape, subjects: Sequence[Subject], device: Device, place: str, peer: str | None
) -> list[dict[str, Any]]:
    material, kind = build(shape, place), torch.device(place).type
    rows: list[dict[str, Any]] = [{} for _ in subjects]
    contenders: dict[int, Contender] = {}
    samplers: dict[int, tuple[timing.Sampler, timing.Method]] = {}
    for index, subject in enumerate(subjects):
        try:
            made = _prepare(subject, material, device, _rotations(shape, subject, place), peer)
            rows[index]["e"] = finite(made.error())
            samplers[index] = timing.sampler(made.calls, kind)
            contenders[index] = made
        except Exception as error:
            require_sound(error)
            rows[index] = {"status": "error", "detail": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    taken = by_turns({index: sampler for index, (sampler, _) in samplers.items()})
    for index, contender in contenders.items():
        found = timing.summary(taken[index], samplers[index][1])
        rows[index] |= {
            "status": "ok",
            "detail": "",
            "us": found.us,
            "spread": found.spread,
            "samples": found.samples,
            "method": found.method,
            "bytes": moved_bytes(shape, Mode(subjects[index].mode)),
            "host_us": None if kind == "cpu" else _host_us(contender, place),
        }
    return rows


def measure_host(shape: Plain, subject: Plain, device: str, place: str, peer: str | None) -> dict[str, Any]:
    """Return the host's time of a subject's eager call: `host_clock.HostTime` and the `Load` before it."""
    use(place)
    of, on = Shape.from_json(shape), resolve.resolve(device).device
    try:
        contender = _prepare(Subject.from_json(subject), build(of, place), on, 1, peer)
        contender.calls[0]()  # compiles what is not compiled yet
        wait(place)
        before = load()
        return asdict(time_calls(contender.calls, partial(wait, place))) | asdict(before)
    finally:
        release(place)


def _prepare(subject: Subject, material: Material, device: Device, rotations: int, peer: str | None) -> Contender:
    if subject.maker == "kvreg":
        return own_calls.prepare(subject, material, device, rotations)
    if subject.maker == "sdpa":
        return peer_calls.sdpa(material, rotations)
    if subject.maker == "flashinfer":
        return peer_calls.flashinfer(subject, material, rotations)
    assert peer is not None
    return peer_calls.vllm(subject, material, device, rotations, Path(peer))


def moved_bytes(shape: Shape, mode: Mode) -> int | None:
    """Return the bytes that a call cannot but move: cache rows, of a write the rows it reads too; None for prefill."""
    from kvreg.core.buckets import Bucket
    from kvreg_tuning import subjects

    whole = Bucket(shape.tokens, 0) if shape.op is Op.WRITE else Bucket(1, shape.tokens)
    return subjects.moved_bytes(shape.op, mode, shape.head_size, shape.kv_heads, whole)


def _rotations(shape: Shape, subject: Subject, place: str) -> int:
    """Return over how many buffers the calls go by turns; on the cpu two, so that the path is the same."""
    if torch.device(place).type != "cuda":
        return 2
    stored = Mode(subject.mode).bytes_per_token_head(shape.head_size) * shape.kv_heads * shape.tokens
    size = getattr(torch.cuda.get_device_properties(torch.device(place)), "L2_cache_size", None)
    return timing.rotations(
        moved_bytes(shape, Mode(subject.mode)) or stored, int(size) if size else None, most=MOST_ROTATIONS
    )


def by_turns(samplers: Mapping[Key, timing.Sampler]) -> dict[Key, list[float]]:
    """Return samples of each, taken by turns."""
    taken: dict[Key, list[float]] = {index: [] for index in samplers}
    end = time.monotonic() + SECONDS
    for number in range(SAMPLES):
        if number >= LEAST and time.monotonic() > end:
            break
        for index, sample in samplers.items():
            taken[index].append(sample())
    return taken


def _host_us(contender: Contender, place: str) -> float:
    return time_calls(contender.calls, partial(wait, place), HOST_SECONDS).us


def finite(error: float | None) -> float | None:
    """Return e, and for what is no number the largest one that JSON has a place for."""
    return error if error is None or math.isfinite(error) else 1e9


def require_sound(error: Exception) -> None:
    """Raise an error again after which nothing else in this process can be believed."""
    if POISONED.search(str(error)):
        raise error


def wait(place: str) -> None:
    """Wait until the device has done everything."""
    if torch.device(place).type == "cuda":
        torch.cuda.synchronize()


def release(place: str) -> None:
    """Give back the memory of what is no longer referred to, graphs included."""
    gc.collect()
    if torch.device(place).type == "cuda":
        torch.cuda.empty_cache()


def use(place: str) -> None:
    """Make a card the one that this process launches on."""
    if torch.device(place).type == "cuda":
        torch.cuda.set_device(torch.device(place))
