"""Launchers called as the runtime calls them, with splits and configs of a test's choice; interpreted in fp32."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg.runtime.launchers import AttendCall, CacheView, Features, SplitPlan
from kvreg.testing import Batch
from kvreg_triton.variants import shared

VARIANTS: dict[tuple[Mode, Op], Variant] = {(v.mode, v.op): v for v in shared("cuda")}


def launcher(variant: Variant) -> Any:
    module, _, attribute = variant.launcher.partition(":")
    return getattr(importlib.import_module(module), attribute)


def config_of(variant: Variant, batch: Batch) -> Mapping[str, int]:
    q_heads = batch.q.shape[1]
    request = Request("h200", variant.mode, batch.head_size, q_heads, batch.kv_heads, batch.page)
    return variant.default_config(None, request)  # type: ignore[arg-type]


@pytest.fixture
def store() -> Callable[..., None]:
    """Return a function that writes a batch's rows into a cache."""

    def run(mode: Mode, cache: Any, batch: Batch, **config: int) -> None:
        variant = VARIANTS[mode, Op.WRITE]
        merged = {**config_of(variant, batch), **config}
        launcher(variant)(CacheView(**cache.fields()), batch.k, batch.v, batch.slots, merged)

    return run


@pytest.fixture
def attention() -> Callable[..., Any]:
    """Return a function that makes the call which the gate wants: one op over a cache, cut as told.

    Of a variant of one platform, that is named; else of the portable one.
    """

    def make(
        mode: Mode,
        op: Op,
        batch: Batch,
        cache: Any,
        *,
        splits: int = 1,
        chunk: int = 0,
        shares: int = 0,
        own: Variant | None = None,
        max_context: int = 0,
        **config: int,
    ) -> Any:
        variant = own or VARIANTS[mode, op]
        tokens, q_heads, width = batch.q.shape
        places = (max(tokens * splits, tokens + shares), q_heads)
        split = SplitPlan(
            splits,
            chunk,
            torch.full((*places, width), float("nan")) if splits > 1 else None,
            torch.full((*places, 2), float("nan")) if splits > 1 else None,
            shares,
        )

        def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
            launcher(variant)(
                AttendCall(
                    q=batch.q,
                    cache=CacheView(**cache.fields()),
                    page_table=batch.page_table,
                    seq_lens=batch.seq_lens,
                    cu_q=batch.cu_q,
                    out=out,
                    lse=lse,
                    scale=batch.scale,
                    split=split,
                    features=Features(**batch.features.fields()),
                    max_context=max_context,
                ),
                {**config_of(variant, batch), **config},
            )

        return call

    return make
