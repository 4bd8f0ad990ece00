"""The parameter grids of vLLM's own tests of these modes, against an fp64 reference over what the cache holds.

docs/vllm-tests.md says which row of which grid is which test here. The numbers are vLLM 0.33's: head counts, head
sizes, lengths, windows; its tolerances are not (1.5e-2 to 1.1 there, the gate's 5e-3 here).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from kvreg import oracle
from kvreg.core.modes import Mode, rotation_block
from kvreg.gate.attention import check_attention
from kvreg.oracle import over_cache
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import dequantize
from kvreg.runtime.plan import plan

QUANTIZED = tuple(mode for mode in Mode if mode is not Mode.NONE)
HEADS = ((4, 4), (8, 2), (5, 1))
SEQUENCES = (((1, 1328), (5, 18), (129, 463)), ((1, 523), (1, 37), (1, 2011)))
"""(query rows, tokens) of each sequence of a batch."""
WINDOWS = (None, 64, 128, 256)
SOFTCAPS = (None, 50.0)
FEATURES = ("causal", "window", "softcap")

FAMILIES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
"""A mode of each way to read rows; the others join in the long form."""


def modes(*usual: Mode, among: Iterable[Mode] = Mode) -> list[Any]:
    """Return the modes, those beside `usual` for the long form."""
    return [mode if mode in usual else pytest.param(mode, marks=pytest.mark.long) for mode in among]


class Filled:
    """A cache of random rows in pages of no order, and the calls over it."""

    def __init__(self, select, backend, mode, heads, head_size, sequences, *, page=16, features=FEATURES):
        generator = torch.Generator().manual_seed(7)
        q_heads, kv_heads = heads
        self.q_lens, self.contexts = zip(*sequences, strict=True)
        needed = [-(-tokens // page) for tokens in self.contexts]
        order = torch.randperm(sum(needed) + 4, generator=generator)
        self.table = torch.full((len(sequences), max(needed)), int(order[-1]), dtype=torch.int32)
        slots, used = [], 0
        for row, (pages, tokens) in enumerate(zip(needed, self.contexts, strict=True)):
            mine = order[used : used + pages]
            self.table[row, :pages] = mine
            slots += [int(mine[t // page]) * page + t % page for t in range(tokens)]
            used += pages
        selection = select(
            backend, str(mode), head_size, q_heads=q_heads, kv_heads=kv_heads, page=page, features=features
        )
        scales = (0.011, 0.013) if mode is Mode.FP8_PER_TENSOR else None
        self.cache = KVCache.allocate(selection, len(order), device="cpu", tensor_scales=scales)
        self.cache.buffer.fill_(0xFF)  # whatever was not written reads as NaN

        def normal(*shape):
            return torch.randn(shape, generator=generator).bfloat16()

        write(
            self.cache,
            normal(len(slots), kv_heads, head_size),
            normal(len(slots), kv_heads, head_size),
            torch.tensor(slots),
        )
        self.q = normal(sum(self.q_lens), q_heads, head_size)
        self.scale = head_size**-0.5
        self.cu_q = [0]
        for rows in self.q_lens:
            self.cu_q.append(self.cu_q[-1] + rows)

    def judged(self, **features):
        """Return what the gate says of one attention call."""
        cu_q, lengths = (torch.tensor(each, dtype=torch.int32) for each in (self.cu_q, self.contexts))
        made = plan(self.cache, cu_q, lengths, max_context=max(self.contexts))
        out, lse = attend(
            self.q, self.cache, self.table, lengths, cu_q, made, scale=self.scale, return_lse=True, **features
        )
        right = over_cache(self.q, self.cache.view, self.table, self.contexts, self.cu_q, scale=self.scale, **features)
        return check_attention(out, right, self.q_lens, dtype=torch.bfloat16, lse=lse)


@pytest.mark.parametrize("sequences", SEQUENCES, ids=["prefill", "decode"])
@pytest.mark.parametrize("head_size", [128, pytest.param(256, marks=pytest.mark.long)])
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}q{heads[1]}kv")
@pytest.mark.parametrize("mode", modes(*FAMILIES))
def test_the_grid_of_unified_attention(mode, heads, head_size, sequences, select):
    """test_triton_unified_attn and its fp8 KV form: every window with every softcap."""
    filled = Filled(select, "cpu", mode, heads, head_size, sequences)

    for window in WINDOWS:
        for softcap in SOFTCAPS:
            report = filled.judged(window=window, softcap=softcap)
            assert report.ok, (window, softcap, report.failures)


@pytest.mark.parametrize(
    "sequences",
    [((1, 128),), ((1, 64), (1, 32)), ((4, 128), (4, 97))],
    ids=["one", "two", "several rows"],
)
@pytest.mark.parametrize("features", [("causal",), ("causal", "multi_query_split")], ids="+".join)
@pytest.mark.parametrize("mode", modes(Mode.INT8_PER_TOKEN_HEAD, Mode.INT4_PER_TOKEN_HEAD, among=QUANTIZED))
def test_the_grid_of_per_token_head_attention(backend, mode, features, sequences, select):
    """test_triton_unified_attention_per_token_head_scale, with the cases that open pull requests add to it."""
    report = Filled(select, backend, mode, (4, 4), 128, sequences, features=features).judged()

    assert report.ok, report.failures


@pytest.mark.parametrize("window", [None, 32])
@pytest.mark.parametrize("heads", [(8, 1), (8, 8)], ids=["1kv", "8kv"])
@pytest.mark.parametrize(
    "sequences",
    [
        *([(rows, 200), (rows, 513)] for rows in (2, 4, 6, 8)),
        [(1, 300), (8, 129), (3, 64)],
        [(6, 128), (6, 129), (6, 4097)],
    ],
    ids=["2", "4", "6", "8", "mixed", "bf16-query"],
)
@pytest.mark.parametrize("mode", modes(Mode.INT4_PER_TOKEN_HEAD))
def test_the_grid_of_speculative_verification(mode, sequences, heads, window, select):
    """test_speculative_splitk_matches_reference and its bf16-query form: drafts of several rows, pages of 128."""
    features = ("causal", "window", "multi_query_split")
    filled = Filled(select, "cpu", mode, heads, 128, sequences, page=128, features=features)

    report = filled.judged(window=window)

    assert report.ok, report.failures


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("kv_heads", [1, 4, 8])
@pytest.mark.parametrize("tokens", [1, 7, 16, 42])
@pytest.mark.parametrize("mode", QUANTIZED)
def test_the_grid_of_reshape_and_cache(mode, tokens, kv_heads, head_size, select):
    """test_reshape_and_cache_per_token_head and test_per_token_head_round_trip_accuracy: rows come back."""
    selection = select("cpu", str(mode), head_size, q_heads=kv_heads, kv_heads=kv_heads)
    pages = -(-tokens // 16) + 4
    scales = (0.011, 0.013) if mode is Mode.FP8_PER_TENSOR else None
    cache = KVCache.allocate(selection, pages, device="cpu", tensor_scales=scales)
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(pages * 16, generator=generator)[:tokens]
    for size in (1.0, 0.5):
        rows = [(torch.randn(tokens, kv_heads, head_size, generator=generator) * size).bfloat16() for _ in range(2)]

        write(cache, *rows, slots)

        for stored, given in zip(dequantize(cache, slots), rows, strict=True):
            assert within_half_a_step(mode, stored - given.float(), given.float(), scales)


def within_half_a_step(
    mode: Mode, error: torch.Tensor, rows: torch.Tensor, scales: tuple[float, float] | None
) -> bool:
    """Return whether rows came back as near as their format allows, which is worked out from the rows alone.

    int8: half of a step, max / 127, in each value. fp8: half of the last of 3 mantissa bits, and at least half of the
    least value. int4: half of a step, range / 15, in each rotated value, so that a row is off by sqrt(d / b) halves
    in L2 (the rotation multiplies lengths by sqrt(b), b the block); a twentieth more where the zero point is rounded.
    """
    if mode is Mode.INT4_PER_TOKEN_HEAD:
        size = rows.shape[-1]
        rotated = oracle.rotate(rows.double(), size)
        step = (rotated.amax(-1).clamp(min=0) - rotated.amin(-1).clamp(max=0)) / 15
        return bool((error.norm(dim=-1) <= 1.05 * step / 2 * (size / rotation_block(size)) ** 0.5).all())
    most = rows.abs().amax(-1, keepdim=True)
    if mode is Mode.INT8_PER_TOKEN_HEAD:
        return bool((error.abs() <= most / 127 / 2 * 1.001).all())
    scale = most / 448 if scales is None else torch.tensor(max(scales))
    return bool((error.abs() <= rows.abs() / 16 + scale * 2**-10).all())
