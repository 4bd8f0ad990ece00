"""A device: the facts of one card, with the source of each group of facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

ARCH_PREFIX = "arch:"
"""Keys of arch devices start with it: arch:sm_90."""


def folder_name(key: str) -> str:
    """Return a device key as a folder's name: h200/mig-1g.18gb -> h200_mig-1g.18gb, arch:sm_90 -> arch_sm_90."""
    return key.replace("/", "_").replace(":", "_")


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
    """Group of facts -> list of {key, how, what}."""
    notes: tuple[str, ...] = ()

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability read from the arch (sm_90 -> (9, 0)); None elsewhere."""
        if not self.arch.startswith("sm_"):
            return None
        digits = self.arch[3:].rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    @property
    def is_arch(self) -> bool:
        """Whether this stands for an architecture and no particular card."""
        return self.key.startswith(ARCH_PREFIX)

    @property
    def has_mig(self) -> bool | None:
        """Whether it can be cut into MIG slices; None where it can but the profiles are unknown."""
        if self.mig_profiles:
            return True
        return None if "mig" in self.sources else False

    def to_json(self) -> dict[str, Any]:
        """Return every field as JSON holds it; `from_json` gives an equal device back."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Device:
        """Return the device that `to_json` wrote, JSON's lists being tuples again."""
        own: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        return cls(**own)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A device and the rule by which a text led to it."""

    device: Device
    matched_by: str
    """key, name, alias, typed_alias, file_name, pci_id, mig, variant, arch."""
    notes: tuple[str, ...] = ()
