"""Caches of an H200's own variants in the host's memory, and calls on them; whether evidence serves is not asked."""

from __future__ import annotations

from typing import Any

import torch

from kvreg.core import layouts
from kvreg.core.devices import Resolution
from kvreg.core.evidence import Evidence
from kvreg.core.layouts import LayoutId, default
from kvreg.core.modes import Mode
from kvreg.core.requests import Request
from kvreg.core.resolve import resolve
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import Geometry, kind_of
from kvreg_cuda.backend import BACKEND

FEATURES = (
    "causal", "non_causal", "per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges",
)  # fmt: skip


def select(mode: str, head_size: int, q_heads: int, kv_heads: int, features: tuple[str, ...] = FEATURES) -> Selection:
    """Return a selection of the first variant that the platform names for each op of a mode: its own come first."""
    device, mode = resolve("h200").device, Mode(mode)
    layout = default(mode)
    request = Request(device.key, mode, head_size, q_heads, kv_heads, 16, "bf16", features, layout=layout)
    ops: dict[Any, Chosen] = {}
    for variant in sorted(BACKEND.variants(), key=lambda each: each.family == "triton"):
        if variant.mode is mode and variant.op not in ops:
            ops[variant.op] = _chosen(variant, device, request)
            described = variant.format(device, head_size)
    result = ModeResult(
        mode=mode,
        verdict="selected",
        layout=layout,
        format=described,
        bytes_per_token_head=mode.bytes_per_token_head(head_size, "bf16"),
        compression=mode.compression(head_size, "bf16"),
        ops=ops,
    )
    return Selection(Resolution(device, "key"), request, (result,))


def _chosen(variant: Any, device: Any, request: Request) -> Chosen:
    none = Evidence(
        trace="made-by-hand", variant=str(variant.id), op=variant.op, mode=request.mode, head_size=request.head_size,
        device=request.device, arch="", kernel_hash="", numerics="none", build="none", speed="none",
        accuracy="exact", max_rel_error=None, cosine=None, seeds=0, layouts=(),
    )  # fmt: skip
    config = dict(variant.default_config(device, request))
    return Chosen(
        variant=str(variant.id), launcher=variant.launcher, accuracy=variant.accuracy, config=config,
        config_source="default", evidence=none, default_config=config,
    )  # fmt: skip


def cache(selection: Selection, pages: int, **keywords: Any) -> KVCache:
    """Return a cache as a card's would be, with its memory on the host."""
    kind = kind_of(selection)
    strides = layouts.strides(
        LayoutId.parse(kind.layout), kind.mode, kind.head_size, kind.kv_heads, kind.page, kind.dtype
    )
    memory = torch.zeros(pages * strides.page_bytes, dtype=torch.uint8)
    return KVCache(selection, Geometry(kind, pages, strides), memory, **keywords)
