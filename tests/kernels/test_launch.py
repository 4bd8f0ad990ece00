"""Grids and compiler options of a launch: one block a row where a batch decodes, whatever its query lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvreg.core.devices import Device
from kvreg.core.layouts import default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.gate import run_attention
from kvreg.testing import build
from kvreg_cuda.backend import BACKEND as CUDA
from kvreg_triton.launch import BLOCKS, Decode, launch_options

H200 = Device("h200", "NVIDIA H200", "cuda", "sm_90", 132)


def batch_of(mode: Mode, q_lens: tuple[int, ...], strays: int):
    """Four sequences with the given query rows, and rows that belong to none of them."""
    whole = build(
        "prefill", head_size=32, group=3, kv_heads=1, contexts=(9, 5, 17, 6), inputs=("normal",), dtype="fp32",
        layout=default(mode),
    )  # fmt: skip
    cuts = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    return replace(whole, q=whole.q[: sum(q_lens) + strays], cu_q=cuts, q_lens=q_lens)


@pytest.mark.parametrize(("mode", "q_lens", "strays", "splits"), [
    *((Mode.INT4_PER_TOKEN_HEAD, *row) for row in (
        ((0, 1, 2, 0), 0, 1), ((0, 1, 2, 0), 1, 2), ((4, 0, 0, 0), 0, 1), ((0, 0, 0, 3), 1, 1), ((0, 0, 0, 0), 4, 1),
        ((0, 1, 2, 0), 2, 1), ((1, 0, 1, 0), 9, 1),
    )),
    (Mode.NONE, (0, 1, 2, 0), 1, 1),
    (Mode.NONE, (0, 0, 0, 3), 1, 2),
    (Mode.NONE, (1, 0, 1, 0), 9, 1),
])  # fmt: skip
def test_rows_find_their_sequence_whatever_lengths_stand_before_them(mode, q_lens, strays, splits, attention):
    """At most as many rows as sequences, where each row is a block, and just above, where blocks hold several."""
    batch = batch_of(mode, q_lens, strays)
    cache = batch.filled(mode)

    report = run_attention(attention(mode, Op.DECODE, batch, cache, splits=splits, tile=16), batch, cache)

    assert report.ok, report.failures


class Grid:
    """Stands where a compiled kernel would, and keeps how it was launched."""

    def __getitem__(self, grid):
        self.grid = grid
        return lambda *args, **meta: setattr(self, "meta", meta)


@pytest.mark.parametrize(("q_lens", "strays", "blocks"), [
    ((1, 1, 1, 1), 0, 4), ((0, 1, 2, 0), 0, 3), ((0, 1, 2, 0), 1, 4), ((1, 1, 1, 2), 0, 5 // 2 + 4),
])  # fmt: skip
def test_a_batch_of_no_more_rows_than_sequences_launches_one_block_a_row(
    q_lens, strays, blocks, attention, monkeypatch
):
    mode = Mode.INT4_PER_TOKEN_HEAD
    batch, kernel = batch_of(mode, q_lens, strays), Grid()
    cache = batch.cache(mode)
    monkeypatch.setattr("kvreg_triton.attend_int4.DECODE", Decode(kernel, kernel))

    attention(mode, Op.DECODE, batch, cache, rows=8)(torch.empty_like(batch.q), None)

    assert kernel.grid == (blocks, 1, 1)


def test_every_option_of_a_config_that_is_not_the_kernels_goes_to_the_compiler():
    config = {"rows": 8, "tile": 64, "programs_per_unit": 8, "chunk": 512, "num_warps": 1, "num_stages": 5}

    assert launch_options(config) == {"num_warps": 1, "num_stages": 5}
    assert launch_options({**config, "maxnreg": 168, "kpack": 2}) == {
        "num_warps": 1, "num_stages": 5, "maxnreg": 168, "kpack": 2,
    }  # fmt: skip


@pytest.mark.parametrize("variant", CUDA.variants(), ids=lambda variant: variant.id.name)
def test_what_a_default_config_names_is_the_kernels_or_an_option_of_nvidias_compiler(variant):
    for head_size in (32, 64, 96, 128, 256, 512):
        config = variant.default_config(H200, Request("h200", variant.mode, head_size))

        assert set(config) <= {*BLOCKS, "blocks_laid_out", "num_warps", "num_stages", "maxnreg"}


def test_small_heads_of_int8_units_are_bound_in_registers():
    (variant,) = [each for each in CUDA.variants() if each.id.name == "cuda-int4-decode"]
    request = Request("h200", variant.mode, 64)

    assert launch_options(variant.default_config(H200, request)) == {"num_warps": 1, "num_stages": 5, "maxnreg": 168}
