"""What a step attends to: kvreg's caches in one mode, or dense rows and torch's SDPA as the yardstick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch.nn import functional

from kvreg.bench import own_calls, subjects
from kvreg.bench.contender import dense_error, result_error
from kvreg.bench.material import Material
from kvreg.bench.selections import selection_of
from kvreg.bench.step.network import Attention, Step
from kvreg.bench.subjects import Subject
from kvreg.core import constraints
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.selections import Selection
from kvreg.core.variants import Variant
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import dequantize
from kvreg.runtime.plan import plan
from kvreg.testing.caches import TENSOR_SCALES


class Caches(Attention, Protocol):
    """An attention whose caches can be filled, and whose last layer can be judged."""

    @property
    def variants(self) -> Mapping[str, str]:
        """Variant id by op; of a peer none."""

    def fill(self, layer: int, material: Material) -> None:
        """Store the rows of every token of a layer."""

    def forget(self) -> None:
        """Make what the next step must give anew unusable: the last result and the newest rows of the last layer."""

    def errors(self, step: Step, material: Material) -> tuple[float, float]:
        """Return (e, stored) of the last layer of a step that was run since `forget`.

        e: worst judged row against fp64 attention over the cache that was read; stored: relative L2 distance of the
        newest rows in the cache from those that the step computed. `material` holds the last layer's rows.
        """


class Paged:
    """kvreg's caches, through the public calls, with one plan for all layers."""

    def __init__(self, selection: Selection, layers: int, material: Material) -> None:
        result = selection.result
        scales = TENSOR_SCALES if result.mode is Mode.FP8_PER_TENSOR else None
        self.variants = {op.value: chosen.variant for op, chosen in result.ops.items() if op is not Op.PREFILL}
        self.caches = [
            KVCache.allocate(selection, material.pages, device=material.place, tensor_scales=scales)
            for _ in range(layers)
        ]
        self.table, self.seq_lens, self.cu_q = material.page_table, material.seq_lens, material.cu_q
        self.newest = material.slots[_newest(material)]
        self.plan = plan(
            self.caches[0],
            self.cu_q,
            self.seq_lens,
            max_context=material.longest,
            total_context=sum(material.shape.contexts),
        )
        self.out = torch.empty_like(material.q)

    def fill(self, layer: int, material: Material) -> None:
        """See Caches."""
        own_calls.fill(self.caches[layer], material)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """See Attention."""
        write(self.caches[layer], k, v, self.newest)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """See Attention."""
        attend(q, self.caches[layer], self.table, self.seq_lens, self.cu_q, self.plan, out=self.out)
        return self.out.view(len(q), -1)

    def forget(self) -> None:
        """See Caches."""
        self.out.fill_(torch.nan)
        kind = self.caches[-1].kind
        blank = torch.zeros(len(self.newest), kind.kv_heads, kind.head_size, dtype=self.out.dtype).to(self.out.device)
        write(self.caches[-1], blank, blank, self.newest)

    def errors(self, step: Step, material: Material) -> tuple[float, float]:
        """See Caches."""
        e = result_error(replace(material, q=step.q), self.out, self.caches[-1].view)
        return e, _distance(torch.stack(dequantize(self.caches[-1], self.newest)), torch.stack([step.k, step.v]))


class Dense:
    """K and V of each sequence in one piece, and torch's SDPA over them."""

    def __init__(self, layers: int, material: Material) -> None:
        self.variants: Mapping[str, str] = {}
        shape = material.shape
        wide = (len(shape.contexts), shape.kv_heads, material.longest, shape.head_size)
        self.k = [material.k.new_empty(wide) for _ in range(layers)]
        self.v = [material.k.new_empty(wide) for _ in range(layers)]
        self.out: torch.Tensor = material.q

    def fill(self, layer: int, material: Material) -> None:
        """See Caches."""
        for dense, rows in ((self.k[layer], material.k), (self.v[layer], material.v)):
            batch, heads, context, size = dense.shape
            dense.copy_(rows.view(batch, context, heads, size).transpose(1, 2))

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """See Attention."""
        self.k[layer][:, :, -1] = k
        self.v[layer][:, :, -1] = v

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """See Attention."""
        k, v = self.k[layer], self.v[layer]
        grouped = q.shape[1] != k.shape[1]
        self.out = functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=grouped)
        return self.out.reshape(len(q), -1)

    def forget(self) -> None:
        """See Caches."""
        self.out.fill_(torch.nan)
        self.k[-1][:, :, -1] = 0
        self.v[-1][:, :, -1] = 0

    def errors(self, step: Step, material: Material) -> tuple[float, float]:
        """See Caches."""
        stored = torch.stack([self.k[-1][:, :, -1], self.v[-1][:, :, -1]])
        newest = _newest(material)
        material.k[newest], material.v[newest] = stored[0], stored[1]
        e = dense_error(replace(material, q=step.q), self.out[:, :, 0])
        return e, _distance(stored, torch.stack([step.k, step.v]))


class LeftOut:
    """Stores as another does and does not attend: what is left of a step without its attention."""

    def __init__(self, caches: Caches, like: torch.Tensor) -> None:
        self.caches, self.result = caches, torch.randn_like(like).view(len(like), -1)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """See Attention."""
        self.caches.store(layer, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Return the same rows for every layer: random ones, since zeros cost less power, which raises clocks."""
        return self.result


def make(subject: Subject, layers: int, material: Material, device: Device) -> Caches:
    """Return the caches of a subject, empty."""
    if subject.maker == "sdpa":
        return Dense(layers, material)
    return Paged(_selection(subject, material, device), layers, material)


def _selection(subject: Subject, material: Material, device: Device) -> Selection:
    """Return what select answers where its decode is the subject's, else one by hand with a write of its package."""
    shape, mode = material.shape, Mode(subject.mode)
    request = subjects.request_of(shape, device.key, mode)
    answer = subjects.answered(shape, device, mode)
    (result,) = answer.results
    if result.verdict == "selected" and result.ops[Op.DECODE].variant == subject.name:
        return answer
    offered = [each for each in subjects.variants_of(device, mode) if not constraints.failed(each, request, device)]
    package = next(_package(each) for each in offered if str(each.id) == subject.name)
    alike = sorted(offered, key=lambda each: _package(each) != package)
    return selection_of(request, device, alike, subject.name, subject.config)


def _package(variant: Variant) -> str:
    return variant.launcher.partition(".")[0]


def _newest(material: Material) -> torch.Tensor:
    """Return which of a material's rows is the last of each sequence, (n_seqs,) int64."""
    return material.starts + material.seq_lens.long() - 1


def _distance(found: torch.Tensor, due: torch.Tensor) -> float:
    return float((found.double() - due.double()).norm() / due.double().norm())
