"""What the bench of a step does inside a worker. Every function takes and returns plain JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from kvreg.bench import material as materials
from kvreg.bench.material import Material
from kvreg.bench.measuring import Plain, by_turns, finite, release, require_sound, use, wait
from kvreg.bench.own_calls import WRITE_ROWS
from kvreg.bench.step import caches, network
from kvreg.bench.step.caches import Caches, LeftOut, Paged
from kvreg.bench.step.network import Network, Step
from kvreg.bench.step.shapes import StepShape
from kvreg.bench.subjects import Subject
from kvreg.core import resolve
from kvreg.core.modes import Mode
from kvreg.runtime.attention import write
from kvreg_tuning import timing

STEPS = 3
"""Steps of one graph, which share what its launch costs."""

SPARE_BYTES = 12 << 30
"""Beside weights and caches: rows that fill them, fp64 of the judge, graphs and what torch takes for itself."""


def compile_subject(shape: Plain, subject: Plain, device: str, place: str) -> None:
    """Launch the write and the attention of one layer once, over one page that stands for all, in the step's strides.

    The write of a cache that is filled is another launch, of rows that have no slot here.
    """
    use(place)
    of = StepShape.from_json(shape)
    material = materials.build(of.decode, place, hollow=True)
    material = replace(material, slots=torch.full_like(material.slots, -1))
    made = caches.make(Subject.from_json(subject), 1, material, resolve.resolve(device).device)
    assert isinstance(made, Paged)
    rows = min(WRITE_ROWS, len(material.slots))
    blank = torch.zeros(rows, of.model.kv_heads, of.model.head_size, dtype=materials.DTYPE, device=place)
    write(made.caches[0], blank, blank, material.slots[:rows])
    Step(network.build(replace(of.model, layers=1, vocab=1), of.batch, of.context - 1, place), made)()
    wait(place)


def measure(shape: Plain, subjects: Sequence[Plain], device: str, place: str) -> list[dict[str, Any]]:
    """Time a step with each subject's attention; returns a row each, in their order.

    A row is {status, detail} with status `error`, or {status: ok, us, spread, samples, method, rest_us, cache_bytes,
    variants, finite, e, stored, hidden}: us is the median of a step, rest_us of the same step without its attention,
    e and stored as `caches.Caches.errors` says, hidden the relative L2 distance of the last hidden state from that of
    the first bf16 subject here (None without one). Raises MemoryError before anything is laid down where the device
    has too little room, and what has poisoned the process.
    """
    use(place)
    of = StepShape.from_json(shape)
    those = [Subject.from_json(each) for each in subjects]
    _require_room(of, those, place)
    try:
        return _Bench(of, those, device, place).rows()
    finally:
        release(place)


def _require_room(shape: StepShape, subjects: Sequence[Subject], place: str) -> None:
    if torch.device(place).type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(torch.device(place))
    stored = sum(shape.cache_bytes(Mode(each.mode)) for each in subjects)
    needed = shape.weight_bytes + stored + SPARE_BYTES
    if needed > free:
        gib = 1 << 30
        raise MemoryError(
            f"required {needed / gib:.0f} GiB for weights and caches, found {free / gib:.0f} GiB free; "
            "name a --mode, or fewer sequences or tokens"
        )


_METHODS: dict[str, tuple[Callable[[Sequence[Step]], timing.Sampler], timing.Method]] = {
    "card": (timing.graph_sampler, "graph"),
    "cpu": (timing.host_sampler, "host"),
}
"""A step of hundreds of launches is timed from a graph or not at all: eager, the host would be timed."""

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class _Timed:
    """A subject that can be timed."""

    made: Caches
    step: Step
    whole: timing.Sampler
    rest: timing.Sampler
    method: timing.Method


class _Bench:
    """One network, one set of rows, and the caches of every subject filled from them."""

    def __init__(self, shape: StepShape, subjects: Sequence[Subject], device: str, place: str) -> None:
        self.shape, self.subjects, self.place = shape, subjects, place
        self.found: list[dict[str, Any]] = [{} for _ in subjects]
        self.network: Network = network.build(shape.model, shape.batch, shape.context - 1, place)
        self.material: Material = materials.build(shape.decode, place)
        on, layers = resolve.resolve(device).device, shape.model.layers
        made = self._each(dict(enumerate(subjects)), lambda one: caches.make(one, layers, self.material, on))
        self._fill(made)
        self.timed = self._each(made, self._ready)

    def rows(self) -> list[dict[str, Any]]:
        """Time all by turns, then judge what the last replay of each has left."""
        samplers = {(index, False): each.whole for index, each in self.timed.items()}
        samplers |= {(index, True): each.rest for index, each in self.timed.items()}
        taken = by_turns(samplers)
        hidden: dict[int, torch.Tensor] = {}
        for index, each in self.timed.items():
            whole = timing.summary(taken[index, False], each.method)
            self.found[index] = {
                "status": "ok",
                "detail": "",
                "us": whole.us,
                "spread": whole.spread,
                "samples": whole.samples,
                "method": whole.method,
                "rest_us": timing.summary(taken[index, True], each.method).us,
                "cache_bytes": self.shape.cache_bytes(Mode(self.subjects[index].mode)),
                "variants": dict(each.made.variants),
                **self._judged(each),
            }
            hidden[index] = each.step.hidden.double()
        bf16 = next((hidden[index] for index in hidden if self.subjects[index].mode == Mode.NONE), None)
        for index, state in hidden.items():
            apart = None if bf16 is None else finite(float((state - bf16).norm() / bf16.norm()))
            self.found[index]["hidden"] = apart
        return self.found

    def _each(self, of: Mapping[int, _Of], make: Callable[[_Of], _Made]) -> dict[int, _Made]:
        """Return what `make` gives for each subject; where it raises, that is the subject's row."""
        made: dict[int, _Made] = {}
        for index, one in of.items():
            try:
                made[index] = make(one)
            except Exception as error:
                require_sound(error)
                detail = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                self.found[index] = {"status": "error", "detail": detail}
        return made

    def _fill(self, made: Mapping[int, Caches]) -> None:
        """Give each layer rows of its own, the same ones in every kind of cache."""
        for layer in range(self.shape.model.layers):
            self.material.k.normal_()
            self.material.v.normal_()
            for each in made.values():
                each.fill(layer, self.material)

    def _ready(self, made: Caches) -> _Timed:
        kind = torch.device(self.place).type
        step = Step(self.network, made)
        sampler, method = _METHODS["cpu" if kind == "cpu" else "card"]
        rest = Step(self.network, LeftOut(made, self.material.q))
        return _Timed(made, step, sampler([step] * STEPS), sampler([rest] * STEPS), method)

    def _judged(self, timed: _Timed) -> dict[str, Any]:
        timed.made.forget()
        timed.step.forget()
        timed.whole()
        wait(self.place)
        e, stored = timed.made.errors(timed.step, self.material)
        sound = bool(timed.step.hidden.isfinite().all() and timed.step.logits.isfinite().all())
        return {"finite": sound, "e": finite(e), "stored": finite(stored)}
