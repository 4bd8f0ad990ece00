"""Does one write store the same bytes every time, while the card is busy with other work?

A public report says that int4 writes flip between runs on an H200. Each repeat poisons the cache, starts matrix
products and writes into other caches on other streams, and then makes the write under test; its bytes are compared
with those of the first one. Runs inside a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from kvreg.bench.vllm_kernels import load as load_peer
from kvreg.core.layouts import INLINE, LayoutId
from kvreg.core.requests import Request
from kvreg.runtime.launchers import CacheView, load
from kvreg.testing import MARK_BYTE, CacheBytes, allocate
from kvreg.validation import calls
from kvreg.validation.work import device_of, use

PAGE = 16
PRODUCT = 2048
"""Rows of the matrix products beside the write: about 20 us each on an H200, so that several meet every write."""

Write = Callable[[CacheBytes], None]


def repeat_writes(
    variant: str,
    device: str,
    place: str,
    tokens: int,
    kv_heads: int,
    head_size: int,
    layout: str = "planar.1",
    repeats: int = 200,
    peer: str | None = None,
) -> dict[str, Any]:
    """Return how many of `repeats` writes differ from the first: {repeats, differing, most_bytes, bytes}.

    With `peer`, a folder of vLLM's files, vLLM's int4 writer is tried instead of the variant, on the inline layout.
    """
    use(place)
    on = device_of(device)
    of = calls.variant_of(variant, on.platform)
    chosen = INLINE if peer else LayoutId.parse(layout)
    pages = -(-tokens // PAGE)
    generator = torch.Generator().manual_seed(tokens * kv_heads + head_size)
    k, v = (
        torch.randn(tokens, kv_heads, head_size, generator=generator).to(torch.bfloat16).to(place) for _ in range(2)
    )
    slots = torch.randperm(pages * PAGE, generator=generator)[:tokens].to(place)

    def cache() -> CacheBytes:
        return allocate(
            of.mode, pages=pages, page=PAGE, kv_heads=kv_heads, head_size=head_size, layout=chosen, device=place
        )

    request = Request(device, of.mode, head_size, kv_heads * 4, kv_heads, PAGE, batch=tokens, layout=chosen)
    launcher, config = load(of.launcher), dict(of.default_config(on, request))
    kernels = load_peer(Path(peer)) if peer else None

    def write(into: CacheBytes) -> None:
        if kernels is not None:
            kernels.write(into, k, v, slots)
        else:
            launcher(CacheView(**into.fields()), k, v, slots, config)

    return {
        "variant": "vllm" if peer else variant,
        "tokens": tokens,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "layout": str(chosen),
        **_repeat(write, cache, place, repeats),
    }


def _repeat(write: Write, cache: Callable[[], CacheBytes], place: str, repeats: int) -> dict[str, Any]:
    under_test, other = cache(), cache()
    side = PRODUCT if torch.device(place).type == "cuda" else 64
    a = torch.randn(side, side, device=place).to(torch.bfloat16)
    beside = [_stream(place) for _ in range(2)]

    def noise() -> None:
        with _on(beside[0]):
            for _ in range(3):
                a @ a
        with _on(beside[1]):
            write(other)

    write(under_test)  # compiled and warm before anything runs beside it
    _wait(place)
    noise()
    _wait(place)
    counts: list[torch.Tensor] = []
    first: torch.Tensor | None = None
    for _ in range(repeats):
        # Enqueued on the main stream in this order; the other streams run where they can.
        under_test.storage.fill_(MARK_BYTE)
        noise()
        write(under_test)
        if first is None:
            first = under_test.storage.clone()
        counts.append((under_test.storage != first).sum())
    _wait(place)
    differing = torch.stack(counts).tolist()
    return {
        "repeats": repeats,
        "differing": sum(1 for count in differing if count),
        "most_bytes": max(differing),
        "bytes": int(under_test.storage.numel()),
    }


def _stream(place: str) -> Any:
    return torch.cuda.Stream() if torch.device(place).type == "cuda" else None


def _on(stream: Any) -> Any:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _wait(place: str) -> None:
    if torch.device(place).type == "cuda":
        torch.cuda.synchronize()
