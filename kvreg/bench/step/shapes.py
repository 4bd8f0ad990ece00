"""A step: a model, how many sequences and how many tokens each has. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvreg.bench import subjects
from kvreg.bench.shapes import Shape
from kvreg.bench.step.models import WEIGHT_BYTES, StepModel
from kvreg.bench.subjects import Planned
from kvreg.core.devices import Device
from kvreg.core.modes import Mode

BATCH, CONTEXT, PAGE = 32, 1088, 16
"""What is assumed: the requests of a chat server, each with a prompt of 1024 tokens and some of its answer."""

MAKERS = ("kvreg", "sdpa")
"""Whose attention is put into the step."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """One decode step."""

    model: StepModel
    batch: int
    context: int
    """Tokens of each sequence, the one that the step writes included."""
    page: int = PAGE

    @property
    def decode(self) -> Shape:
        """The attention of one layer."""
        model = self.model
        heads = (model.q_heads, model.kv_heads, model.head_size)
        return Shape(str(self), "decode", (self.context,) * self.batch, *heads, self.page)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads."""
        return self.model.weights * WEIGHT_BYTES

    def cache_bytes(self, mode: Mode) -> int:
        """Return the bytes of the caches of all layers, in whole pages."""
        model = self.model
        slots = self.batch * -(-self.context // self.page) * self.page
        return model.layers * slots * model.kv_heads * mode.bytes_per_token_head(model.head_size)

    def __str__(self) -> str:
        return f"{self.model.name} step {self.batch} x {self.context}"

    def to_json(self) -> dict[str, Any]:
        """Return the shape as a JSON object."""
        return {
            "model": self.model.to_json(),
            "batch": self.batch,
            "context": self.context,
            "page": self.page,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> StepShape:
        """Read what `to_json` gave."""
        return cls(StepModel.from_json(record["model"]), record["batch"], record["context"], record["page"])


def plan(shape: StepShape, device: Device, modes: Sequence[Mode], *, every: bool) -> Planned:
    """Return whose attention is timed in the step: that of each mode, kvreg's bf16 and torch's SDPA among them."""
    whole = subjects.plan(shape.decode, device, modes, every=every, vllm=False)
    return replace(whole, subjects=tuple(each for each in whole.subjects if each.maker in MAKERS))
