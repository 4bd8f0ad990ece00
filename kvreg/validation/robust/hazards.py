"""Trials that read out of bounds or never end: each is one typed outcome, and the device serves the next task.

A bad address poisons the context of a CUDA process, which then answers nothing but errors; elsewhere the runtime may
end the process, and under the interpreter the read itself does. Either way the worker is replaced. What never ends is
killed at its time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvreg.validation.robust.findings import Finding, judged, skipped
from kvreg.validation.unproven import Place
from kvreg_tuning.worker import POISONED, Outcome, Status, Worker

KERNELS = "kvreg.validation.robust.hazard_kernels"
ONES = float(1 << 20)
LIMIT_S = {"card": 15.0, "interpreter": 2.0}
"""For the kernel that never ends, from its launch on: compiling it takes a card's process a few seconds."""
OTHERS_S = 60.0
NEEDS_S = 2 * LIMIT_S["card"]
"""For what never ends, and as much for the three other tasks."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """One bad task and how it must end."""

    task: str
    ends: tuple[Status, ...]
    limit_s: float


def hazards_of(place: Place) -> tuple[Hazard, ...]:
    """Return the bad tasks for a place."""
    cuda = place.is_card and place.resolution.device.platform == "cuda"
    read: tuple[Status, ...] = ("error",) if cuda else ("error", "crash") if place.is_card else ("crash",)
    return (
        Hazard("out_of_bounds", read, OTHERS_S),
        Hazard("for_ever", ("timeout",), LIMIT_S["card" if place.is_card else place.name]),
    )


def survived(place: Place) -> Finding:
    """Run each bad task in a worker and a good one behind it."""
    if place.name == "cpu":
        return skipped("the torch kernels of the cpu have neither pointers nor loops of their own")
    hazards = hazards_of(place)
    environment = {"TRITON_INTERPRET": "1" if place.interpreted else "0"}
    failures, ends = [], []
    with Worker(environment=environment) as worker:
        for hazard in hazards:
            arguments = {"place": place.torch_device}
            bad = worker.run(f"{KERNELS}:{hazard.task}", arguments, timeout_s=hazard.limit_s)
            good = worker.run(f"{KERNELS}:total_of_ones", arguments, timeout_s=OTHERS_S)
            ends.append(f"{hazard.task} ended as {bad.status} after {bad.elapsed_s:.1f} s, then {good.status}")
            failures += [f"{hazard.task}: {text}" for text in unlike(hazard, bad, good, place)]
    return judged("; ".join(ends), failures)


def unlike(hazard: Hazard, bad: Outcome, good: Outcome, place: Place) -> Iterator[str]:
    """Yield how the two outcomes differ from what they must be."""
    if bad.status not in hazard.ends:
        yield f"required {' or '.join(hazard.ends)}, found {bad.status} {bad.error}".rstrip()
    elif bad.status == "error" and not POISONED.search(bad.error):
        yield f"required an error of the device, found {bad.error}"
    if bad.device_lost:
        yield f"required the device to stay, found {bad.error}"
    if good.value != ONES:
        yield f"required {ONES:g} from the next task on {place.name}, found {good.status} {good.value} {good.error}"
