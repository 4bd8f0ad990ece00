"""How strong the evidence for a variant is: three axes, and the tier that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from kvreg.core.requests import Op

Numerics = Literal["device", "arch", "interpreter", "none"]
Build = Literal["device", "cross", "none"]
Speed = Literal["measured", "estimated", "none"]


MOST_SPILL_BYTES = 64
"""Bytes of registers that a thread may spill: a handful of addresses at a loop's edge, not its accumulators. More is
taken only where all launch parameters spill, and is said."""


class Tier(StrEnum):
    """Strength of evidence, the strongest first."""

    MEASURED = "measured"
    COMPILED = "compiled"
    INTERPRETED = "interpreted"
    DECLARED = "declared"

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return list(Tier).index(self)


def tier(numerics: Numerics, build: Build) -> Tier:
    """Return the tier of a pair of axes."""
    if numerics in ("device", "arch") and build == "device":
        return Tier.MEASURED
    if numerics == "interpreter":
        return Tier.COMPILED if build == "cross" else Tier.INTERPRETED
    return Tier.DECLARED


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured point of a variant, beside bf16 in the same run."""

    batch: int
    context: int
    group: int
    us: float
    bf16_us: float | None = None
    bf16_variant: str | None = None
    fraction_of_limit: float | None = None
    """Share of the card's measured read bandwidth."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a compiler's figures say against a kernel on an arch, both numbers quoted."""

    code: str
    """shared_memory, spills, matrix_instruction, threads, compile."""
    field: str
    required: str
    found: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one (variant, op, mode, head size) on one device; made from one trace."""

    trace: str
    """Id of the trace; `kvreg evidence show ID` reproduces it."""
    variant: str
    """Variant id, `name@version`."""
    op: Op
    mode: str
    head_size: int
    device: str
    """Device key that the numbers were measured on."""
    arch: str
    kernel_hash: str
    numerics: Numerics
    build: Build
    speed: Speed
    accuracy: str
    max_rel_error: float | None
    cosine: float | None
    seeds: int
    layouts: tuple[str, ...]
    features: tuple[str, ...] = ("causal",)
    """Feature words that its cells covered; records from before features were recorded covered causal attention."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """torch, triton, driver, python, kvreg."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    config: Mapping[str, int] = field(default_factory=dict)
    """Launch parameters that were validated; a cross build says nothing of others."""
    refusals: tuple[Refusal, ...] = ()
    """Why a cross build can not serve: the record is there to say so."""

    @property
    def tier(self) -> Tier:
        """The tier that the axes amount to; a build that was refused amounts to nothing."""
        return Tier.DECLARED if self.refusals else tier(self.numerics, self.build)
