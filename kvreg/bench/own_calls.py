"""kvreg's variants as contenders, through the public calls: what is timed is what a model runs."""

from __future__ import annotations

from functools import partial

import torch

from kvreg.bench.contender import Contender, fitting, no_error, repeat, result_error
from kvreg.bench.material import Material
from kvreg.bench.selections import selection_of
from kvreg.bench.subjects import Subject, request_of, variants_of
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.testing.caches import TENSOR_SCALES

WRITE_ROWS = 1 << 16
"""Tokens that one call stores while a cache is filled."""


def prepare(subject: Subject, material: Material, device: Device, rotations: int) -> Contender:
    """Return a variant's calls; the cache is filled by the mode's own write."""
    cache = _cache(subject, material, device, rotations)
    rotations = cache.pages // material.pages
    if material.shape.op is Op.WRITE:
        step = material.pages * material.shape.page
        slots = [material.slots + rotation * step for rotation in range(rotations)]
        return Contender([partial(write, cache, material.k, material.v, mine) for mine in slots], no_error)
    if len(material.k):
        fill(cache, material)
        repeat(cache.buffer, rotations)
    made = plan(
        cache,
        material.cu_q,
        material.seq_lens,
        max_context=material.longest,
        total_context=sum(material.shape.contexts),
    )
    out = torch.empty_like(material.q)
    calls = [
        partial(attend, material.q, cache, table, material.seq_lens, material.cu_q, made, out=out)
        for table in material.tables(rotations)
    ]

    def error() -> float:
        out.fill_(torch.nan)
        calls[0]()
        return result_error(material, out, cache.view)

    return Contender(calls, error)


def _cache(subject: Subject, material: Material, device: Device, rotations: int) -> KVCache:
    mode, shape = Mode(subject.mode), material.shape
    request = request_of(shape, device.key, mode)
    selection = selection_of(request, device, variants_of(device, mode), subject.name, subject.config)
    page_bytes = mode.bytes_per_token_head(shape.head_size) * shape.kv_heads * shape.page
    pages = material.pages * fitting(rotations, material.pages * page_bytes)
    scales = TENSOR_SCALES if mode is Mode.FP8_PER_TENSOR else None
    return KVCache.allocate(selection, pages, device=material.place, tensor_scales=scales)


def fill(cache: KVCache, material: Material) -> None:
    """Store every row of `material` in the pages of its first rotation."""
    for first in range(0, len(material.slots), WRITE_ROWS):
        part = slice(first, first + WRITE_ROWS)
        write(cache, material.k[part], material.v[part], material.slots[part])
