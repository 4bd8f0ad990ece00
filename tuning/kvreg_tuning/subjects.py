"""What is tuned: one variant on one device for one shape, and its workloads as buckets. Plain, so that it travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvreg.core import registry
from kvreg.core.backends import Backend
from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.layouts import LayoutId, default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant

Config = Mapping[str, int]
"""Launch parameters by name."""

PLANNING = ("programs_per_unit", "chunk")
"""Parameters that the launchers of kvreg_triton read to plan the splits; once those are known they have no part in a
launch, so that configs that differ in nothing else are one launch."""

VALUE_BYTES = 2
"""Bytes of a bf16 or fp16 value: what a write reads."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant for one shape; its fields are those of a tuned entry."""

    device: str
    """Key of the device."""
    variant: str
    op: str
    mode: str
    head_size: int
    group: int
    kv_heads: int
    page: int = 16
    dtype: str = "bf16"
    layout: str = ""
    """Empty becomes that of the mode."""
    features: tuple[str, ...] = ("causal",)

    def __post_init__(self) -> None:
        if not self.layout:
            object.__setattr__(self, "layout", str(default(Mode(self.mode))))

    def request(self, bucket: Bucket) -> Request:
        """Return the request that a bucket stands for: its largest workload."""
        return Request(
            device=self.device,
            mode=Mode(self.mode),
            head_size=self.head_size,
            q_heads=self.group * self.kv_heads,
            kv_heads=self.kv_heads,
            page=self.page,
            dtype=self.dtype,
            features=self.features,
            batch=bucket.batch,
            context=max(bucket.context, 1),
            layout=LayoutId.parse(self.layout),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the subject as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Subject:
        """Read what `to_json` gave."""
        values = {each.name: record[each.name] for each in fields(cls)}
        return cls(**{**values, "features": tuple(values["features"])})

    def __str__(self) -> str:
        asked = "" if self.features == ("causal",) else f" {'+'.join(self.features)}"
        group = "" if self.op == Op.WRITE else f" group {self.group}"
        return f"{self.variant} d{self.head_size}{group}{asked}"


def offered(platform: str) -> dict[str, tuple[Backend, Variant]]:
    """Return every variant of a platform by its id, with the backend that offers it."""
    return {
        str(variant.id): (backend, variant)
        for backend in registry.backends()
        if backend.platform == platform
        for variant in backend.variants()
    }


def text_of(config: Config) -> str:
    """Return a config in one line."""
    return " ".join(f"{name}={value}" for name, value in config.items()) or "no parameter"


def kernel_text(config: Config) -> str:
    """Return what of a config reaches the kernel, in one line: equal lines are one compilation."""
    return text_of({name: value for name, value in config.items() if name not in PLANNING})


def limit_us(subject: Subject, bucket: Bucket, device: Device, bandwidth: float | None = None) -> float | None:
    """Return the time that the card's bandwidth (bytes per second; None takes the data sheet's) alone allows.

    None where the bandwidth is unknown or something else is the limit.
    """
    if bandwidth is None and device.memory_bandwidth_gbs is not None:
        bandwidth = device.memory_bandwidth_gbs * 1e9
    if "window" in subject.features:
        return None  # what is read depends on how wide the window is
    moved = moved_bytes(Op(subject.op), Mode(subject.mode), subject.head_size, subject.kv_heads, bucket)
    return moved / bandwidth * 1e6 if moved and bandwidth else None


def moved_bytes(op: Op, mode: Mode, head_size: int, kv_heads: int, bucket: Bucket) -> int | None:
    """Return the bytes that a workload cannot but move: the cache rows read, or rows read and stored by a write.

    None for prefill, which is bound by arithmetic. A bucket need not be a power of two here.
    """
    stored = mode.bytes_per_token_head(head_size) * kv_heads
    if op is Op.DECODE:
        return bucket.batch * bucket.context * stored
    if op is Op.WRITE:
        return bucket.batch * (stored + 2 * VALUE_BYTES * head_size * kv_heads)
    return None


def buckets_text(buckets: Sequence[Bucket]) -> str:
    """Return buckets in one line."""
    return ", ".join(map(str, buckets))
