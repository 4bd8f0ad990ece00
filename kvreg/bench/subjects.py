"""What is measured at a shape: kvreg's variants and the kernels of others. Torch-free."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from kvreg.bench.shapes import Shape
from kvreg.core import asking, constraints, registry
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Selection
from kvreg.core.variants import Variant

Maker = Literal["kvreg", "sdpa", "vllm", "flashinfer"]

DEFAULT_MODES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD, Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD)
"""What is measured when no mode is asked for: fp8_per_tensor moves the bytes of fp8_per_token_head less its scales."""

VLLM_MODES = DEFAULT_MODES
"""Modes in which vLLM's Triton kernels are measured."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One kernel that is measured at a shape."""

    maker: Maker
    mode: str
    name: str
    """A variant's id, or what a peer's kernel is called in the answer."""
    config: Mapping[str, int] | None = None
    """Launch parameters of a variant."""
    source: str = ""
    """Where they come from: tuned, bucket, estimated, default."""

    @property
    def compiles(self) -> bool:
        """Whether its first launch compiles."""
        return self.maker != "sdpa"

    @property
    def is_alone(self) -> bool:
        """Whether it runs in a process of its own: FlashInfer has been seen to end in an illegal address."""
        return self.maker == "flashinfer"

    def to_json(self) -> dict[str, Any]:
        """Return the subject as a JSON object."""
        return {**asdict(self), "config": None if self.config is None else dict(self.config)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Subject:
        """Read what `to_json` gave."""
        return cls(**{each.name: record[each.name] for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mode in which no variant is measured at a shape, and why."""

    mode: str
    reason: str
    name: str = ""
    """None has the name of a variant."""


def request_of(shape: Shape, device: str, mode: Mode) -> Request:
    """Return the request that a shape stands for."""
    tokens = shape.work == "write"
    return asking.make_request(
        device,
        mode,
        shape.head_size,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        page=shape.page,
        features=shape.features,
        batch=shape.tokens if tokens else len(shape.contexts),
        context=1 if tokens else max(shape.contexts),
    )


def variants_of(device: Device, mode: Mode) -> list[Variant]:
    """Return every variant that a device's platform offers for a mode, the built-in ones first."""
    offered = [each for each in registry.backends() if each.platform == device.platform]
    return [variant for backend in offered for variant in backend.variants() if variant.mode is mode]


def fitting(shape: Shape, device: Device, mode: Mode) -> list[Subject]:
    """Return each variant that takes the shape, whatever its evidence, with its own launch parameters."""
    request = request_of(shape, device.key, mode)
    return [
        Subject("kvreg", mode.value, str(each.id), dict(each.default_config(device, request)), "default")
        for each in variants_of(device, mode)
        if each.op is shape.op and not constraints.failed(each, request, device)
    ]


def answered(shape: Shape, device: Device, mode: Mode) -> Selection:
    """Return what `kvreg select` answers for the shape."""
    of = request_of(shape, device.key, mode)
    return asking.ask(
        device.key,
        mode,
        of.head_size,
        q_heads=of.q_heads,
        kv_heads=of.kv_heads,
        page=of.page,
        features=of.features,
        batch=of.batch,
        context=of.context,
    )


def selected(shape: Shape, device: Device, mode: Mode) -> Subject | Refusal:
    """Return the variant that `kvreg select` answers with, and the launch parameters that it names."""
    (result,) = answered(shape, device, mode).results
    if result.verdict == "refused":
        return Refusal(mode.value, result.reason or "refused")
    chosen = result.ops[shape.op]
    return Subject("kvreg", mode.value, chosen.variant, dict(chosen.config), chosen.config_source)


def own(shape: Shape, device: Device, modes: Sequence[Mode], *, every: bool) -> Iterator[Subject | Refusal]:
    """Yield kvreg's subjects of a shape: what select answers, and with `every` each other variant that fits."""
    for mode in modes:
        answer = selected(shape, device, mode)
        others = [each for each in (fitting(shape, device, mode) if every else []) if each.name != answer.name]
        if not (isinstance(answer, Refusal) and others):
            yield answer
        yield from others


def peers(shape: Shape, device: Device, modes: Sequence[Mode], *, vllm: bool) -> Iterator[Subject]:
    """Yield the kernels of others for a shape: torch's always, vLLM's where its files are, FlashInfer's where it is.

    bf16 is always among them: it is what the modes are compared with.
    """
    bf16 = Mode.NONE.value
    if shape.op is not Op.WRITE:
        yield Subject("sdpa", bf16, "SDPA bf16, dense")
    if vllm:
        wanted = [mode for mode in VLLM_MODES if mode is Mode.NONE or mode in modes]
        for mode in wanted:
            if shape.op is not Op.WRITE or mode is not Mode.NONE:
                name = "bf16" if mode is Mode.NONE else mode.value
                yield Subject("vllm", mode.value, f"vLLM {name}")
    if shape.op is not Op.WRITE and device.platform == "cuda" and importlib.util.find_spec("flashinfer"):
        units = ("tensor cores", "cuda cores") if shape.work == "decode" else ("tensor cores",)
        yield from (Subject("flashinfer", bf16, f"FlashInfer bf16, {unit}") for unit in units)


@dataclass(frozen=True, slots=True)
class Planned:
    """A shape and what is measured at it."""

    shape: Shape
    subjects: tuple[Subject, ...]
    refusals: tuple[Refusal, ...] = ()


def plan(shape: Shape, device: Device, modes: Sequence[Mode], *, every: bool, vllm: bool) -> Planned:
    """Return what is measured at a shape; kvreg's bf16 is always among it. See `own` and `peers`."""
    wanted = (Mode.NONE, *(mode for mode in modes if mode is not Mode.NONE))
    mine = list(own(shape, device, wanted, every=every))
    subjects = [each for each in mine if isinstance(each, Subject)]
    return Planned(
        shape,
        (*subjects, *peers(shape, device, modes, vllm=vllm)),
        tuple(each for each in mine if isinstance(each, Refusal)),
    )
