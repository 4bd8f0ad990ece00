"""Whether what a compiler made can run on a card, and which of several launch parameters to take: pure functions.

The compiler checks little of this: a kernel that needs more shared memory than a work-group may have, or more threads,
compiles to a binary that looks well and fails at its launch; a matrix product of an unlucky shape becomes thousands of
scalar multiplications; registers that do not suffice spill to memory. Each is a fault with both numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvreg.core.evidence import MOST_SPILL_BYTES
from kvreg.core.launchable import MOST_THREADS
from kvreg_triton.cross.compilations import Compiled
from kvreg_triton.cross.specializations import Specialization

SPILLS = "spills"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that speaks against launch parameters on an arch."""

    code: str
    """compile, threads, shared_memory, matrix_instruction, spills, option."""
    field: str
    required: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: required {self.required}, found {self.found}"

    def to_json(self) -> dict[str, str]:
        """Return the fault as a trace holds it."""
        return {"code": self.code, "field": self.field, "required": self.required, "found": self.found}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a card of the arch has; None means unknown, and what is unknown refuses nothing."""

    arch: str
    shared_bytes: int | None
    spill_bytes: int | None = MOST_SPILL_BYTES


@dataclass(frozen=True, slots=True)
class Tried:
    """One set of launch parameters and all that was compiled of it."""

    config: Mapping[str, int]
    compiled: Mapping[str, Compiled]
    """Form of the launch -> what became of it."""
    faults: tuple[Fault, ...]
    specializations: Mapping[str, Specialization] = field(default_factory=dict)
    """Form of the launch -> what was compiled."""

    @property
    def only_spills(self) -> bool:
        """Whether nothing but spills speaks against it."""
        return bool(self.faults) and all(fault.code == SPILLS for fault in self.faults)

    @property
    def spill_bytes(self) -> int:
        """The most that a thread of any of its kernels spills; 0 where that is unknown."""
        return max((each.reading.get("spill_bytes") or 0 for each in self.compiled.values()), default=0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to launch on an arch, if anything."""

    taken: Tried | None
    faults: tuple[Fault, ...] = ()
    """Of the first parameters, where nothing is taken."""
    note: str | None = None
    """What a reader must know of what is taken."""


def option_faults(lines: Sequence[str]) -> tuple[Fault, ...]:
    """Return the lines of `Backend.validate_options` as faults: Triton drops an unknown name without a word."""
    return tuple(
        Fault("option", line.partition(":")[0], "a launch option of the platform with a legal value", line)
        for line in lines
    )


def faults(form: str, result: Compiled, limits: Limits, *, matrix: bool) -> tuple[Fault, ...]:
    """Return what speaks against one compiled launch; `matrix`: the kernel declares a matrix instruction."""
    if result.status != "ok":
        words = {"timeout": "a compilation that ends", "crash": "a compiler that answers", "error": "code"}
        return (
            Fault("compile", form, f"{words[result.status]} for {limits.arch}", f"{result.status}: {result.error}"),
        )
    reading: Mapping[str, Any] = result.reading
    found = []
    threads, shared, spilled = (_known(reading, name) for name in ("threads", "shared_bytes", "spill_bytes"))
    if threads > MOST_THREADS:
        found.append(Fault("threads", f"{form}, threads", f"at most {MOST_THREADS}", str(threads)))
    if limits.shared_bytes is not None and shared > limits.shared_bytes:
        most = f"at most {limits.shared_bytes} bytes on {limits.arch}"
        found.append(Fault("shared_memory", f"{form}, shared memory", most, f"{shared} bytes"))
    if matrix and reading.get("matrix_instruction") is None:
        required = f"a matrix instruction of {limits.arch}"
        found.append(Fault("matrix_instruction", f"{form}, matrix product", required, "scalar multiply-adds only"))
    if limits.spill_bytes is not None and spilled > limits.spill_bytes:
        most = f"at most {limits.spill_bytes} bytes a thread"
        found.append(Fault(SPILLS, f"{form}, spilled registers", most, f"{spilled} bytes"))
    return tuple(found)


def _known(reading: Mapping[str, Any], name: str) -> int:
    """Return a figure, 0 for an unknown one: what is unknown refuses nothing."""
    return reading.get(name) or 0


def choose(tried: Sequence[Tried]) -> Choice:
    """Return the first parameters without a fault, else the least spilling of those that do nothing worse."""
    sound = next((each for each in tried if not each.faults), None)
    if sound is not None:
        return Choice(sound)
    spilling = [each for each in tried if each.only_spills]
    if spilling:
        least = min(spilling, key=lambda each: each.spill_bytes)
        note = f"each of {len(tried)} launch parameters spills; these the least, {least.spill_bytes} bytes a thread"
        return Choice(least, note=note)
    return Choice(None, tried[0].faults if tried else ())
