"""What the checks work with: a line-up of variants, caches for it, and small batches of two KV heads.

Every check of a line-up has the same geometry, so that a kernel is compiled once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvreg.bench.selections import select_from
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Selection
from kvreg.runtime.attention import attend
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import Plan, plan
from kvreg.testing import MARK_BYTE, Batch, Kind, build
from kvreg.testing.caches import TENSOR_SCALES
from kvreg.validation.unproven import Place, fitting, offered, place_of
from kvreg.validation.work import use

HEAD, GROUP, KV_HEADS, PAGE = 64, 4, 2, 16
CONTEXTS = {"card": (1, 17, 300, 1024), "interpreter": (1, 17, 40), "cpu": (1, 17, 300)}
"""A card cuts 1024 tokens in several parts; the interpreter takes a second for a few tokens."""


@dataclass(frozen=True, slots=True)
class LineUp:
    """The variants of one mode that stand together in a selection, at a place."""

    place: Place
    mode: Mode
    decode: str
    """Id of the decode variant; write and prefill are the first that fit, of its package where that has one."""
    features: tuple[str, ...] = ("causal",)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Lengths that the place can take."""
        return CONTEXTS["card" if self.place.is_card else self.place.name]

    def selection(self, layout: str = "planar.1") -> Selection:
        """Return the selection with these variants."""
        request = _request(self.place, self.mode, layout, max(self.contexts), self.features)
        fit = fitting(request, self.place)
        decode = next(each for each in fit[Op.DECODE] if str(each.id) == self.decode)
        package = decode.launcher.partition(".")[0]
        winners = {
            op: next((each for each in variants if each.launcher.startswith(f"{package}.")), variants[0])
            for op, variants in fit.items()
        }
        winners[Op.DECODE] = decode
        return select_from(winners, request, self.place.resolution)

    def cache(self, pages: int, layout: str = "planar.1") -> KVCache:
        """Return a cache of `pages` pages, every byte of it MARK_BYTE."""
        device = self.place.torch_device
        made = KVCache.allocate(self.selection(layout), pages, device=device, tensor_scales=self.tensor_scales)
        made.buffer.fill_(MARK_BYTE)
        return made

    def over(self, buffer: torch.Tensor, layout: str = "planar.1") -> KVCache:
        """Return a cache over memory that is there."""
        return KVCache.from_buffer(self.selection(layout), buffer, tensor_scales=self.tensor_scales)

    def batch(self, kind: Kind, layout: str = "planar.1", contexts: Sequence[int] = (), padding: int = 3) -> Batch:
        """Return a batch of N(0,1) rows."""
        return build(
            kind,
            head_size=HEAD,
            group=GROUP,
            kv_heads=KV_HEADS,
            page=PAGE,
            contexts=contexts or self.contexts,
            inputs=("normal",),
            layout=LayoutId.parse(layout),
            device=self.place.torch_device,
            padding=padding,
            features=self.features,
        )

    @property
    def tensor_scales(self) -> tuple[float, float] | None:
        """Scales of K and V where the mode has them."""
        return TENSOR_SCALES if self.mode is Mode.FP8_PER_TENSOR else None


def line_up(place: str, mode: str, decode: str, features: tuple[str, ...] = ("causal",)) -> LineUp:
    """Return a line-up from the plain values that a task has, its device made the current one."""
    where = place_of(place)
    use(where.torch_device)
    return LineUp(where, Mode(mode), decode, features)


def line_ups(place: Place) -> list[tuple[str, str]]:
    """Return (mode, decode variant) of every line-up that a place offers."""
    return [
        (str(mode), str(variant.id))
        for mode in offered(place)
        for variant in fitting(_request(place, mode, "planar.1", 1, ("causal",)), place)[Op.DECODE]
    ]


def plan_for(cache: KVCache, batch: Batch) -> Plan:
    """Return a plan for the longest context of a batch."""
    return plan(cache, batch.cu_q, batch.seq_lens, max_context=max(1, *batch.contexts))


Result = tuple[torch.Tensor, torch.Tensor]
"""Output and lse of an attention."""


def attended(cache: KVCache, batch: Batch, made: Plan | None = None, **asked: Any) -> Result:
    """Attend a whole batch with the features that it was built for."""
    arguments = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made or plan_for(cache, batch))
    out, lse = attend(*arguments, return_lse=True, **{**batch.features.fields(), **asked})
    return out, lse


def differing(found: torch.Tensor, right: torch.Tensor) -> int:
    """Return how many elements have other bits."""
    return int((as_integers(found) != as_integers(right)).sum())


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """Return a view of the same bits as integers: NaN compares, and torch indexes no fp8 tensor."""
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.dtype.itemsize])


def wait(place: Place) -> None:
    """Wait for the card, so that what it has to say of a launch is said here."""
    if place.is_card:
        getattr(torch, torch.device(place.torch_device).type).synchronize()


def _request(place: Place, mode: Mode, layout: str, context: int, features: tuple[str, ...]) -> Request:
    return Request(
        device=place.resolution.device.key,
        mode=mode,
        head_size=HEAD,
        q_heads=GROUP * KV_HEADS,
        kv_heads=KV_HEADS,
        page=PAGE,
        dtype="bf16",
        features=features,
        batch=len(CONTEXTS["card"]),
        context=context,
        layout=LayoutId.parse(layout),
    )
