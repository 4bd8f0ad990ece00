"""The write kernels: bytes, quantizer, slots, strides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from kvreg.core.layouts import LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.gate import run_write
from kvreg.testing import build
from kvreg_triton.write_int4 import quantize

MODES = tuple(Mode)
INT4 = Mode.INT4_PER_TOKEN_HEAD
FP8 = (Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD)
EACH_KERNEL = [pytest.param(mode, marks=pytest.mark.long if mode in FP8 else ()) for mode in MODES]
HEAD_SIZES = (32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 504, 512)


@triton.jit
def quantize_rows(x, code, scale, ROWS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)
    row = tl.arange(0, ROWS)
    at = row[:, None] * HEAD + channel[None, :]
    inside = (channel < HEAD)[None, :]
    codes, scales = quantize(tl.load(x + at, mask=inside, other=0.0))
    tl.store(code + at, codes, mask=inside)
    tl.store(scale + row, scales)


def round_trip(x: torch.Tensor) -> torch.Tensor:
    """Quantize rows by the kernel's quantizer alone and dequantize them as the format says."""
    rows, width = x.shape
    codes, scale = torch.zeros(rows, width, dtype=torch.uint8), torch.zeros(rows)
    quantize_rows[(1,)](x, codes, scale, rows, width, triton.next_power_of_2(width))
    bits = scale.view(torch.int32)
    return (codes.double() - (bits & 15).double()[:, None]) * (bits & ~15).view(torch.float32).double()[:, None]


@pytest.mark.parametrize(("low", "high", "bound"), [(-0.5, 0.5, 1 / 30), (5.0, 6.0, 0.2)])
def test_padding_lanes_do_not_enter_the_range_of_a_row(low, high, bound):
    """Half a step of 1/15; for one-sided rows the range holds 0, so the step is .4 and the error never 5."""
    x = torch.empty(64, 96).uniform_(low, high, generator=torch.Generator().manual_seed(1))

    error = (round_trip(x) - x).abs().max()

    assert error <= bound * (1 + 1e-5)  # the zero point's bits change the scale by up to 1.8e-6


@pytest.mark.parametrize(
    "row", [[0.0] * 96, [3.0] * 96, [-3.0] * 96, [1e-9] * 96, [0.0] * 95 + [100.0], [-2.0] + [5.0] * 95]
)
def test_constant_zero_and_one_sided_rows_stay_within_half_a_step(row):
    x = torch.tensor([row])

    step = max((max(*row, 0.0) - min(*row, 0.0)) / 15, 1e-6)

    assert (round_trip(x) - x).abs().max() <= step / 2 * (1 + 1e-5)


STORED = [
    # fp8 takes the kernel of int8.
    pytest.param(mode, head_size, layout, marks=() if mode not in FP8 or head_size == 96 else pytest.mark.long)
    for mode in MODES
    for layout in known(mode)
    for head_size in HEAD_SIZES
    # Rows that lie together in another layout do so by other strides alone.
    if layout == str(default(mode)) or head_size in (40, 96)
]


@pytest.mark.parametrize(("mode", "head_size", "layout"), STORED)
def test_stored_rows_are_the_oracles_and_no_other_byte_changes(mode, head_size, layout, store):
    shape: dict[str, Any] = {"contexts": (1, 17), "kv_heads": 2}
    if head_size in (40, 96):
        shape = {"contexts": (1, 17, 33), "kv_heads": 3}
    if head_size > 192:  # the interpreter takes a minute for these; fewer rows cross page, tile and head alike
        shape["inputs"] = ("normal", "one_sided")
    batch = build("prefill", head_size=head_size, layout=LayoutId.parse(layout), dtype="fp32", **shape)
    cache = batch.cache(mode, lead=64, gap=32)

    report = run_write(lambda: store(mode, cache, batch), batch, cache)

    assert report.ok, report.failures


@pytest.mark.parametrize("mode", EACH_KERNEL)
def test_slots_of_32_bits_and_pages_of_528_tokens_are_legal(mode, store):
    batch = build("prefill", head_size=96, contexts=(1, 600), page=528, inputs=("normal",), layout=default(mode))
    batch = replace(batch, slots=batch.slots.to(torch.int32))
    cache = batch.cache(mode)

    report = run_write(lambda: store(mode, cache, batch), batch, cache)

    assert report.ok, report.failures


@pytest.mark.parametrize("mode", EACH_KERNEL)
def test_the_tile_of_rows_does_not_show_in_the_bytes(mode, store):
    batch = build("prefill", head_size=96, contexts=(1, 17, 64), inputs=("normal",), kv_heads=1, layout=default(mode))
    caches = [batch.cache(mode) for _ in range(3)]

    for cache, rows in zip(caches, (1, 8, 32), strict=True):
        store(mode, cache, batch, rows=rows)

    assert torch.equal(caches[0].storage, caches[1].storage)
    assert torch.equal(caches[0].storage, caches[2].storage)
