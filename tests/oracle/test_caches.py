"""Reading a cache from its raw bytes: addresses and values by plain arithmetic on a bytes object."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
import torch

from kvreg.core.errors import WrongCache
from kvreg.core.layouts import INLINE, PLANAR, TOKEN_MINOR, LayoutId
from kvreg.core.modes import Mode
from kvreg.oracle import dequantize, rotate, store, stored_rows, unrotate
from kvreg.testing import CacheBytes, allocate

INT4 = Mode.INT4_PER_TOKEN_HEAD
LAYOUTS = [PLANAR, INLINE]
"""Of every mode; int4 has TOKEN_MINOR too."""


def addresses(
    layout: LayoutId, row: int, scale: int, page_index: int, slot: int, head: int, heads: int, page: int, gap: int
) -> tuple[int, int, int, int]:
    """Byte offsets of K row, V row, K scale and V scale, as kvreg.core.layouts draws them."""
    if layout != INLINE:
        run = 2 * page * (row + scale)
        base = page_index * (heads * run + gap) + head * run
        scales = base + 2 * page * row
        return (
            base + slot * row,
            base + page * row + slot * (1 if layout == TOKEN_MINOR else row),
            scales + slot * scale,
            scales + page * scale + slot * scale,
        )
    content = 2 * (row + scale)
    base = page_index * (page * heads * content + gap) + (slot * heads + head) * content
    return base, base + row + scale, base + row, base + 2 * row + scale


def int4_row(raw: bytes, at: int, scale_at: int, head_size: int, apart: int) -> list[float]:
    """The values of a row whose bytes lie `apart` bytes from one another."""
    (word,) = struct.unpack_from("<I", raw, scale_at)
    (scale,) = struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFF0))
    values = []
    for channel in range(head_size):
        byte = raw[at + channel // 2 * apart]
        values.append(((byte >> 4 if channel % 2 else byte & 15) - (word & 15)) * scale)
    return values


def filled(mode: Mode, layout: LayoutId, head: int, page: int, dtype: str = "bf16") -> tuple[CacheBytes, int, int]:
    """A cache of random rows, with lead bytes before and gap bytes behind each page."""
    lead, gap = 32, 48
    cache = allocate(
        mode, pages=3, page=page, kv_heads=3, head_size=head, dtype=dtype, layout=layout, lead=lead, gap=gap
    )
    generator = torch.Generator().manual_seed(head)
    k, v = torch.randn((2, 3 * page, 3, head), generator=generator).to(torch.bfloat16)
    store(cache, k, v, torch.randperm(3 * page, generator=generator))
    return cache, lead, gap


@pytest.mark.parametrize("layout", [*LAYOUTS, TOKEN_MINOR], ids=str)
@pytest.mark.parametrize(("head", "page"), [(32, 16), (40, 48), (96, 16), (104, 80)])
def test_int4_rows_are_what_their_bytes_say(layout: LayoutId, head: int, page: int) -> None:
    cache, lead, gap = filled(INT4, layout, head, page)
    raw = bytes(cache.storage.tolist())

    for slot in (0, 1, page - 1, page, 3 * page - 2, 3 * page - 1):
        k, v = dequantize(cache, torch.tensor(slot))
        for h in range(3):
            at = addresses(layout, head // 2, 4, slot // page, slot % page, h, 3, page, gap)
            apart = page if layout == TOKEN_MINOR else 1
            for got, row, scale, step in ((k[h], at[0], at[2], 1), (v[h], at[1], at[3], apart)):
                due = torch.tensor(int4_row(raw, lead + row, lead + scale, head, step), dtype=torch.float64)
                torch.testing.assert_close(got, unrotate(due, head), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_plain_rows_are_read_exactly(layout: LayoutId, dtype: str) -> None:
    cache, lead, gap = filled(Mode.NONE, layout, 40, 16, dtype)
    size, code = (4, "<40f") if dtype == "fp32" else (2, "<40e" if dtype == "fp16" else "<40H")
    raw = bytes(cache.storage.tolist())

    at = addresses(layout, 40 * size, 0, 2, 5, 1, 3, 16, gap)
    k, v = dequantize(cache, torch.tensor([37]))

    for got, offset in ((k[0, 1], at[0]), (v[0, 1], at[1])):
        values = struct.unpack_from(code, raw, lead + offset)
        if dtype == "bf16":
            values = tuple(struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in values)
        assert got.tolist() == list(values)


def test_scales_of_nan_bytes_are_read_as_they_are() -> None:
    cache = allocate(INT4, pages=1, page=16, kv_heads=1, head_size=32)

    assert stored_rows(cache, "k", torch.tensor([0]), torch.tensor([3])).isnan().all()


@pytest.mark.parametrize("layout", [*LAYOUTS, TOKEN_MINOR], ids=str)
def test_an_ideal_write_is_within_half_a_step_and_leaves_other_bytes_alone(layout: LayoutId) -> None:
    cache = allocate(INT4, pages=4, page=16, kv_heads=2, head_size=96, layout=layout, fill=0xA5)
    k, v = torch.randn((2, 8, 2, 96))

    store(cache, k, v, torch.tensor([0, 17, -1, 33, -1]))

    for side, rows in (("k", k), ("v", v)):
        for slot, row in ((0, 0), (17, 1), (33, 3)):
            stored = stored_rows(cache, side, torch.tensor(slot // 16), torch.tensor(slot % 16))
            error = (stored - rotate(rows[row], 96)).abs().amax(-1)
            step = (rotate(rows[row], 96).amax(-1) - rotate(rows[row], 96).amin(-1)) / 15
            assert (error <= 0.51 * step).all()
    changed = int((cache.storage != 0xA5).sum())
    assert 0.9 * 3 * 2 * 104 < changed <= 3 * 2 * 104


def fp8_value(byte: int, fnuz: bool) -> float:
    """The value of an e4m3 code by its bits."""
    if byte == 0x80 if fnuz else byte & 0x7F == 0x7F:
        return math.nan
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    return (-size if byte & 0x80 else size) / (2 if fnuz else 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("mode", [Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR], ids=str)
@pytest.mark.parametrize(("head", "page"), [(40, 16), (104, 48)])
def test_rows_of_eight_bits_are_what_their_bytes_say(
    layout: LayoutId, fp8: str, mode: Mode, head: int, page: int
) -> None:
    made = allocate(
        mode, pages=3, page=page, kv_heads=3, head_size=head, layout=layout, lead=32, gap=48, fp8=fp8,
        tensor_scales=(0.25, 3.0),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(head)
    rows = torch.randn((2, 3 * page, 3, head), generator=generator)
    store(made, *rows, torch.arange(3 * page))
    raw = bytes(made.storage.tolist())
    stored = 4 if mode.has_scales else 0

    for slot in (0, page - 1, page, 3 * page - 1):
        for h in range(3):
            at = addresses(layout, head, stored, slot // page, slot % page, h, 3, page, 48)
            for got, source, row, scale, given in zip(
                dequantize(made, torch.tensor(slot)), rows, at[:2], at[2:], (0.25, 3.0), strict=True
            ):
                (factor,) = struct.unpack_from("<f", raw, 32 + scale) if stored else (given,)
                codes = raw[32 + row : 32 + row + head]
                if mode is Mode.INT8_PER_TOKEN_HEAD:
                    values = [float(x) for x in struct.unpack(f"{head}b", codes)]
                else:
                    values = [fp8_value(x, fp8 == "e4m3fnuz") for x in codes]
                due = torch.tensor(values, dtype=torch.float64) * factor
                assert torch.equal(got[h], due)
                torch.testing.assert_close(due, source[slot, h].double(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("mode", list(Mode), ids=str)
def test_a_cache_that_nobody_wrote_reads_as_nan(mode: Mode, fp8: str) -> None:
    made = allocate(mode, pages=1, page=16, kv_heads=1, head_size=32, fp8=fp8)

    assert all(side.isnan().all() for side in dequantize(made, torch.tensor([3])))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("mode", [Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR], ids=str)
def test_a_row_that_is_not_finite_is_stored_visibly_and_stays_in_its_row(mode: Mode, bad: float) -> None:
    made = allocate(mode, pages=1, page=16, kv_heads=1, head_size=32)
    k, v = torch.ones((2, 3, 1, 32))
    k[1, 0, 9] = bad

    store(made, k, v, torch.tensor([4, 5, 6]))
    k_read, v_read = dequantize(made, torch.tensor([4, 5, 6]))

    assert k_read[1, 0, 9].isnan()
    assert k_read[[0, 2]].isfinite().all()
    assert v_read.isfinite().all()


def test_a_cache_with_a_scale_a_tensor_needs_its_scales() -> None:
    made = allocate(Mode.FP8_PER_TENSOR, pages=1, page=16, kv_heads=1, head_size=32)

    with pytest.raises(WrongCache, match="required tensor_scales"):
        dequantize(replace(made, tensor_scales=None), torch.tensor([0]))


def test_rows_of_a_dtype_that_is_not_the_modes_are_refused() -> None:
    cache = allocate(Mode.INT8_PER_TOKEN_HEAD, pages=1, page=16, kv_heads=1, head_size=32)

    with pytest.raises(
        WrongCache, match=r"required K and V rows of one dtype of torch.int8, found torch.uint8"
    ) as caught:
        dequantize(replace(cache, k=cache.k.view(torch.uint8), v=cache.v.view(torch.uint8)), torch.tensor([0]))
    assert caught.value.exit_code == 2
