"""The kernels of others as contenders: torch's SDPA, vLLM's Triton kernels, FlashInfer.

Each reads the same rows, in the layout that its project uses: SDPA dense K and V of each sequence (no pages, so that
it does less than the others), vLLM its inline slots, FlashInfer NHD pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from kvreg.bench import vllm_kernels
from kvreg.bench.contender import Contender, dense_error, fitting, no_error, repeat, result_error
from kvreg.bench.material import DTYPE, Material
from kvreg.bench.subjects import Subject
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.layouts import INLINE
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.testing import CacheBytes, allocate

WORKSPACE_BYTES = 512 << 20
"""Of FlashInfer; its documentation recommends 128 MB, long contexts ask for more."""


def sdpa(material: Material, rotations: int) -> Contender:
    """Return torch's attention: one call over all sequences of one length, else one call a sequence."""
    shape = material.shape
    rotations = fitting(rotations, 2 * material.k.nbytes)
    equal = len(set(shape.contexts)) == 1
    parts = [(0, len(shape.contexts))] if equal else [(each, each + 1) for each in range(len(shape.contexts))]
    chunks = [_Dense.of(material, first, end) for first, end in parts]
    copies = [chunks, *([each.copied() for each in chunks] for _ in range(rotations - 1))]

    def attend(mine: list[_Dense]) -> list[torch.Tensor]:
        return [each.attend() for each in mine]

    def error() -> float:
        outs = attend(copies[0])
        flat = [out.transpose(1, 2).reshape(-1, shape.q_heads, shape.head_size) for out in outs]
        return dense_error(material, torch.cat(flat))

    return Contender([partial(attend, mine) for mine in copies], error)


class _Dense:
    """Sequences of one length: q (n, q_heads, queries, head_size), k and v (n, kv_heads, context, head_size)."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self.q, self.k, self.v = q, k, v
        queries, context = q.shape[2], k.shape[2]
        self.mask: Any = None
        if 1 < queries < context:
            from torch.nn.attention.bias import causal_lower_right  # a prototype of torch's; drafts alone need it

            self.mask = causal_lower_right(queries, context)
        self.is_causal = 1 < queries == context

    @classmethod
    def of(cls, material: Material, first: int, end: int) -> _Dense:
        """Return sequences `first` to `end` of a shape as dense copies."""
        shape = material.shape
        queries, contexts = shape.queries, shape.contexts
        row, token = sum(contexts[:first]), sum(queries[:first])
        n, context, query = end - first, contexts[first], queries[first]

        def laid(x: torch.Tensor, start: int, length: int) -> torch.Tensor:
            mine = x[start : start + n * length].view(n, length, x.shape[1], x.shape[2])
            return mine.transpose(1, 2).contiguous()

        return cls(laid(material.q, token, query), laid(material.k, row, context), laid(material.v, row, context))

    def copied(self) -> _Dense:
        """Return the same over other memory of K and V."""
        return _Dense(self.q, self.k.clone(), self.v.clone())

    def attend(self) -> torch.Tensor:
        """Return the result, like `q`."""
        return torch.nn.functional.scaled_dot_product_attention(
            self.q,
            self.k,
            self.v,
            attn_mask=self.mask,
            is_causal=self.is_causal,
            enable_gqa=self.q.shape[1] != self.k.shape[1],
        )


def vllm(subject: Subject, material: Material, device: Device, rotations: int, folder: Path) -> Contender:
    """Return vLLM's unified attention, or its writer, over inline slots."""
    kernels, shape, mode = vllm_kernels.load(folder), material.shape, Mode(subject.mode)
    cache = _inline(material, device, mode, rotations)
    rotations = cache.k.shape[0] // material.pages
    if shape.op is Op.WRITE:
        step = material.pages * shape.page
        slots = [material.slots + rotation * step for rotation in range(rotations)]
        return Contender([partial(kernels.write, cache, material.k, material.v, mine) for mine in slots], no_error)
    if len(material.k):
        if mode is Mode.NONE:
            _store(material, cache.k, cache.v)
        else:
            kernels.write(cache, material.k, material.v, material.slots)
        repeat(cache.storage, rotations)
    out = torch.empty_like(material.q)
    calls = [
        kernels.attention(
            vllm_kernels.PeerCall(
                q=material.q,
                cache=cache,
                out=out,
                page_table=table,
                seq_lens=material.seq_lens,
                cu_q=material.cu_q,
                most_queries=max(shape.queries),
                longest=material.longest,
                scale=material.scale,
            )
        )
        for table in material.tables(rotations)
    ]

    def error() -> float:
        out.fill_(torch.nan)
        calls[0]()
        return result_error(material, out, cache)

    return Contender(calls, error)


def _inline(material: Material, device: Device, mode: Mode, rotations: int) -> CacheBytes:
    shape = material.shape
    page_bytes = mode.bytes_per_token_head(shape.head_size) * shape.kv_heads * shape.page
    return allocate(
        mode,
        pages=material.pages * fitting(rotations, material.pages * page_bytes),
        page=shape.page,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        layout=INLINE,
        device=material.place,
        fill=0,
        fp8=fp8_type(device),
    )


def _store(material: Material, k: torch.Tensor, v: torch.Tensor) -> None:
    at = (material.slots // material.shape.page, material.slots % material.shape.page)
    k[at], v[at] = material.k, material.v


def flashinfer(subject: Subject, material: Material, rotations: int) -> Contender:
    """Return FlashInfer's paged attention in bf16; its plan is made once, as an engine makes it once a step."""
    shape = material.shape
    wide = (material.pages, 2, shape.page, shape.kv_heads, shape.head_size)
    rotations = fitting(rotations, 4 * material.pages * shape.page * shape.kv_heads * shape.head_size)
    pages = torch.empty(rotations, *wide, device=material.place, dtype=DTYPE)
    if len(material.k):
        _store(material, pages[0, :, 0], pages[0, :, 1])
        pages[1:] = pages[:1]
    run = _planned(material, "tensor" in subject.name)
    calls = [partial(run, material.q, each) for each in pages]

    def error() -> float:
        cache = _view(material, pages[0])
        return result_error(material, calls[0](), cache)

    return Contender(calls, error)


def _planned(material: Material, tensor_cores: bool) -> Callable[..., torch.Tensor]:
    import flashinfer as library

    shape = material.shape
    needed = [-(-context // shape.page) for context in shape.contexts]
    indptr = torch.tensor([0, *accumulate(needed)], dtype=torch.int32)
    own = [material.page_table[row, :count] for row, count in enumerate(needed)]
    indices = torch.cat(own).contiguous()
    last = torch.tensor([(context - 1) % shape.page + 1 for context in shape.contexts], dtype=torch.int32)
    heads = (shape.q_heads, shape.kv_heads, shape.head_size, shape.page)
    workspace = torch.empty(WORKSPACE_BYTES, device=material.place, dtype=torch.uint8)
    paged = (indptr.to(material.place), indices, last.to(material.place))
    if shape.work == "decode":
        decode = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
        decode.plan(*paged, *heads, q_data_type=DTYPE, kv_data_type=DTYPE)
        return decode.run  # type: ignore[no-any-return]
    prefill = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    prefill.plan(material.cu_q, *paged, *heads, causal=True, q_data_type=DTYPE, kv_data_type=DTYPE)
    return prefill.run  # type: ignore[no-any-return]


def _view(material: Material, pages: torch.Tensor) -> CacheBytes:
    """Return FlashInfer's pages as a cache that the oracle reads."""
    shape = material.shape
    return CacheBytes(
        mode=Mode.NONE,
        head_size=shape.head_size,
        kv_heads=shape.kv_heads,
        page=shape.page,
        k=pages[:, 0],
        v=pages[:, 1],
        k_scale=None,
        v_scale=None,
        alignment=16,
        layout=INLINE,
        storage=pages,
    )
