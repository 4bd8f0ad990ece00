"""Selections made by hand, so that these tests judge the runtime and no evidence; both backends on the cpu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kvreg_cpu.variants
import kvreg_triton.variants
from kvreg.core.devices import Device, Resolution
from kvreg.core.evidence import Evidence
from kvreg.core.formats import E4M3FN, QMAX
from kvreg.core.layouts import LayoutId, default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.runtime.attention import attend
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.testing import Batch
from kvreg.testing.caches import TENSOR_SCALES, nan_byte

DEVICES = {
    "cpu": Device(key="cpu", name="cpu", platform="cpu", arch="cpu", compute_units=None),
    "triton": Device(key="h200", name="NVIDIA H200", platform="cuda", arch="sm_90", compute_units=132),
}
INTERPRETED_ROWS = 64
"""Rows of a write's program here: the interpreter takes as long for one row as for many, and
tests/kernels/test_write.py shows that their number does not show in the bytes."""
VARIANTS = {"cpu": kvreg_cpu.variants.variants(), "triton": kvreg_triton.variants.shared("cuda")}


def _evidence(op: Op, variant: str, mode: Mode, request: Request) -> Evidence:
    return Evidence(
        trace="made-by-hand",
        variant=variant,
        op=op,
        mode=mode,
        head_size=request.head_size,
        device=request.device,
        arch="",
        kernel_hash="",
        numerics="none",
        build="none",
        speed="none",
        accuracy="exact",
        max_rel_error=None,
        cosine=None,
        seeds=0,
        layouts=(),
    )


def select(
    backend: str = "cpu",
    mode: str = "int4_per_token_head",
    head_size: int = 96,
    *,
    q_heads: int = 8,
    kv_heads: int = 2,
    page: int = 16,
    dtype: str = "bf16",
    layout: str | None = None,
    features: tuple[str, ...] = ("causal",),
    fp8: str | None = None,
    **config: int,
) -> Selection:
    """Return what select would answer, without looking for evidence; `config` overrides launch parameters.

    `layout`: the mode's default where it is None. `fp8`: the type of fp8 rows, where it is not the device's own.
    """
    device, kv_mode = DEVICES[backend], Mode(mode)
    layout_id = default(kv_mode) if layout is None else LayoutId.parse(layout)
    request = Request(device.key, kv_mode, head_size, q_heads, kv_heads, page, dtype, features, layout=layout_id)
    winners = {variant.op: variant for variant in VARIANTS[backend] if variant.mode is kv_mode}
    ops = {}
    for op, variant in winners.items():
        usual = dict(variant.default_config(device, request))
        if backend == "triton" and op is Op.WRITE:
            usual["rows"] = INTERPRETED_ROWS
        chosen = {**usual, **{name: value for name, value in config.items() if name in usual}}
        ops[op] = Chosen(
            variant=str(variant.id),
            launcher=variant.launcher,
            accuracy=variant.accuracy,
            config=chosen,
            config_source="default",
            evidence=_evidence(op, str(variant.id), kv_mode, request),
            default_config=usual,
        )
    described = next(iter(winners.values())).format(device, head_size)
    if fp8 is not None and kv_mode.is_fp8:
        described = replace(described, fp8=fp8, storage=f"float8_{fp8}", qmax=QMAX[fp8])
    result = ModeResult(
        mode=kv_mode,
        verdict="selected",
        layout=layout_id,
        format=replace(described, layout_id=str(layout_id)),
        bytes_per_token_head=kv_mode.bytes_per_token_head(head_size, dtype),
        compression=kv_mode.compression(head_size, dtype),
        ops=ops,
    )
    return Selection(Resolution(device, "key"), request, (result,))


@pytest.fixture(name="select")
def select_fixture() -> Callable[..., Selection]:
    return select


@pytest.fixture(params=["cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend that runs on this machine: plain torch, and the Triton kernels under the interpreter."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    return str(request.param)


@pytest.fixture
def allocate() -> Callable[..., KVCache]:
    """Return a function that selects and allocates a cache of `pages` pages."""

    def make(backend: str = "cpu", *arguments: Any, pages: int = 4, **keywords: Any) -> KVCache:
        return KVCache.allocate(select(backend, *arguments, **keywords), pages, device="cpu")

    return make


@pytest.fixture
def cache_for() -> Callable[..., KVCache]:
    """Return a function that makes a cache of the right size for a batch, every byte of it dirt that reads as NaN.

    It has the default layout of the mode, whatever the batch's, unless it is told another.
    """

    def make(
        backend: str, mode: str, batch: Batch, fp8: str = E4M3FN, layout: str | None = None, **config: int
    ) -> KVCache:
        selection = select(
            backend,
            mode,
            batch.head_size,
            q_heads=batch.q.shape[1],
            kv_heads=batch.kv_heads,
            page=batch.page,
            dtype=batch.dtype,
            layout=layout,
            features=batch.features.words,
            fp8=fp8,
            **config,
        )
        scales = TENSOR_SCALES if mode == Mode.FP8_PER_TENSOR else None
        cache = KVCache.allocate(selection, batch.pages, device="cpu", tensor_scales=scales)
        cache.buffer.fill_(nan_byte(Mode(mode), fp8))
        return cache

    return make


@pytest.fixture
def attend_batch() -> Callable[..., Any]:
    """Return a function that plans and attends a whole batch with the features that it was built for."""

    def run(cache: KVCache, batch: Batch, *, batch_invariant: bool = False, **keywords: Any) -> Any:
        longest = max(1, *batch.contexts)
        made = plan(cache, batch.cu_q, batch.seq_lens, max_context=longest, batch_invariant=batch_invariant)
        tensors = (batch.page_table, batch.seq_lens, batch.cu_q)
        asked = {**batch.features.fields(), **keywords}
        return attend(batch.q, cache, *tensors, made, scale=batch.scale, **asked)

    return run


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    torch.manual_seed(0)
