"""Selections without evidence: what select would answer if every variant had been validated everywhere.

What no evidence supports yet is exactly what is to be tried, so trials choose variants by their constraints alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from kvreg.core import layouts, registry, resolve
from kvreg.core.constraints import failed
from kvreg.core.devices import Resolution
from kvreg.core.errors import DeviceUnavailable, Refused, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run: the device whose variants are tried, and torch's name of it."""

    name: str
    """What was asked for: cpu, interpreter, or a torch device."""
    resolution: Resolution
    torch_device: str

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter stands in for the card."""
        return self.name == "interpreter"

    @property
    def is_card(self) -> bool:
        """Whether kernels run on a card."""
        return not self.torch_device.startswith("cpu")


def place_of(name: str) -> Place:
    """Return the place that a word stands for: `cpu`, `interpreter`, or a torch device such as `cuda`.

    Raises DeviceUnavailable where there is no such card. `interpreter` needs TRITON_INTERPRET=1 before Triton loads.
    """
    if name == "cpu":
        return Place(name, resolve.resolve("cpu"), "cpu")
    if name == "interpreter":
        return Place(name, resolve.resolve("h200"), "cpu")
    resolution = resolve.default_device()
    module = getattr(torch, name.partition(":")[0], None)
    if not (module and hasattr(module, "is_available") and module.is_available()):
        raise DeviceUnavailable(
            wrong(f"device {name}", required="a card that torch sees", found="none", remedy="run kvreg doctor")
        )
    return Place(name, resolution, name if ":" in name else f"{name}:{module.current_device()}")


def offered(place: Place) -> tuple[Mode, ...]:
    """Return the modes that a place has variants for: no fp8 where the arch has none."""
    modes = []
    for mode in Mode:
        with contextlib.suppress(Refused):
            fitting(Request(place.resolution.device.key, mode, 64, layout=layouts.default(mode)), place)
            modes.append(mode)
    return tuple(modes)


def fitting(request: Request, place: Place) -> dict[Op, tuple[Variant, ...]]:
    """Return the variants of each op that can serve a request for one mode at a place, in the order of the backends.

    Raises Refused where an op has none.
    """
    device = place.resolution.device
    found: dict[Op, list[Variant]] = {op: [] for op in Op}
    for backend in registry.backends():
        for variant in backend.variants() if backend.platform == device.platform else ():
            runs = not (place.interpreted and variant.needs_card)
            if variant.mode is request.mode and runs and not failed(variant, request, device):
                found[variant.op].append(variant)
    for op, variants in found.items():
        if not variants:
            raise Refused(
                wrong(
                    f"{request.mode} on {device.key}",
                    required=f"a {op} variant",
                    found=f"none for head size {request.head_size}, {', '.join(request.features)}",
                    remedy="kvreg select --explain says what each of them requires",
                )
            )
    return {op: tuple(variants) for op, variants in found.items()}
