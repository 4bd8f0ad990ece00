"""A device: the facts of one card, with the source of each group of facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """One card, one MIG slice, one sub-model or one bare arch. None means unknown; nothing is guessed."""

    key: str
    """h200, mi300x, h200/mig-1g.18gb, arch:sm_90 (unknown card), cpu."""
    name: str
    platform: str
    """cuda, rocm, xpu or cpu."""
    arch: str
    compute_units: int | None
    memory_gb: float | None = None
    memory_bandwidth_gbs: float | None = None
    shared_per_block_max_bytes: int | None = None
    l2_bytes: int | None = None
    bf16_native: bool | None = None
    fp8_triton: tuple[str, ...] = ()
    """fp8 types that Triton's front end accepts on the arch: e4m3fn, e5m2, e4m3fnuz, ..."""
    fp8_native: tuple[str, ...] = ()
    warp_sizes: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    typed_aliases: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    mig_profiles: tuple[str, ...] = ()
    parent: str | None = None
    """Key of the device that this one is derived from (MIG slice, sub-model, virtual function)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """All other facts as the platform's devices.yaml names them."""
    sources: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability read from the arch (sm_90 -> (9, 0)); None elsewhere."""
        if not self.arch.startswith("sm_"):
            return None
        digits = self.arch[3:].rstrip("af")
        return int(digits[:-1]), int(digits[-1])


@dataclass(frozen=True, slots=True)
class Resolution:
    """A device and the rule by which a text led to it."""

    device: Device
    matched_by: str
    """key, name, alias, typed_alias, file_name, pci_id, mig, variant, arch."""
    notes: tuple[str, ...] = ()
