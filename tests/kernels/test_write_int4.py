"""The int4 write on matrix units under the gate: widths, tiles, slots, pages, strides, ties, rows not finite."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvreg.core.layouts import PLANAR, LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.gate import run_write
from kvreg.oracle import rotate
from kvreg.oracle.quantize import quantize_int4, unpack_codes, unpack_scale
from kvreg.runtime.launchers import CacheView
from kvreg.testing import build
from kvreg_cuda.write_int4 import WRITE

INT4 = Mode.INT4_PER_TOKEN_HEAD
PLANAR_2 = default(INT4)


def rows_of(contexts=(1, 17, 33), **shape):
    """Rows of sequences; `contexts` that are no multiples of 16 put a program's tokens into several pages."""
    return build(
        "prefill",
        **{"head_size": 96, "kv_heads": 1, "inputs": ("normal",), "dtype": "fp32", "layout": PLANAR_2} | shape,
        contexts=contexts,
    )


def store(view, k, v, slots, rows=16):
    WRITE(view, k, v, slots, {"rows": rows, "num_warps": 1, "num_stages": 1})


def written(batch, rows=16):
    """Return a cache of its own with the batch's rows in it, judged by the gate."""
    cache = batch.cache(INT4, lead=64, gap=32)

    report = run_write(lambda: store(CacheView(**cache.fields()), batch.k, batch.v, batch.slots, rows), batch, cache)

    assert report.ok, report.failures
    return cache


def whole_pages(tokens=32, **shape):
    """Tokens of whole pages, so that every program's slots are an aligned sixteen."""
    batch = rows_of((tokens,), padding=0, **shape)
    assert (batch.slots.reshape(-1, 16) == batch.slots[::16, None] + torch.arange(16)).all()
    return batch


@pytest.mark.parametrize("head_size", [32, 40, 48, 64, 72, 112, 128, 192, 504, 512])
def test_rows_of_every_width_are_the_oracles(head_size):
    shape = {"contexts": (1, 17), "inputs": ("normal", "one_sided")} if head_size < 200 else {"contexts": (1, 17)}
    written(rows_of(head_size=head_size, **shape), 16 if head_size <= 256 else 8)


@pytest.mark.parametrize("layout", [each for each in known(INT4) if each != str(PLANAR_2)])
@pytest.mark.parametrize("head_size", [40, 128])
def test_rows_whose_bytes_are_adjacent_are_the_oracles(layout, head_size):
    written(rows_of(head_size=head_size, kv_heads=2, layout=LayoutId.parse(layout)))


@pytest.mark.parametrize("head_size", [32, 72])
def test_sixteen_tokens_of_a_page_are_stored_like_any_others(head_size):
    batch = whole_pages(head_size=head_size, kv_heads=2)
    # Sums of such values are exact: the interpreter's products round by where a row stands, on some processors.
    batch = replace(batch, k=(batch.k * 64).round() / 64, v=(batch.v * 64).round() / 64)
    apart = torch.arange(32).reshape(2, 16).T.flatten()

    together = written(batch)
    scattered = written(replace(batch, k=batch.k[apart], v=batch.v[apart], slots=batch.slots[apart]))

    assert torch.equal(together.storage, scattered.storage)


@pytest.mark.parametrize(
    "slots", [[16, *range(1, 16)], [*range(15), -1], [*range(8, 24)], [*range(16, 24), *range(8)], [*range(15)]],
    ids=["another first", "one left out", "not aligned", "two halves", "one too few"],
)  # fmt: skip
def test_sixteen_tokens_that_are_no_page_go_where_their_slots_are(slots):
    batch = replace(rows_of((32,), padding=0), slots=torch.tensor(slots))
    rows = len(slots)
    batch = replace(batch, k=batch.k[:16], v=batch.v[:16], row_sequence=torch.zeros(rows, dtype=torch.int64))
    written(batch)


def test_the_tile_of_rows_does_not_show_in_the_bytes():
    batch = rows_of((1, 17, 14))
    first, *others = (written(batch, rows) for rows in (16, 4, 8, 32))
    for other in others:
        assert torch.equal(first.storage, other.storage)


def test_slots_of_32_bits_and_pages_of_528_tokens_are_legal():
    batch = rows_of((1, 40), page=528, head_size=40)
    written(replace(batch, slots=batch.slots.to(torch.int32)))


def test_rows_of_any_strides_are_read():
    batch = rows_of((1, 17), kv_heads=2)
    wide = torch.full((batch.k.shape[0], 5, 97), float("nan"))
    k, v = wide[:, 1:3, :96], wide[:, 3:, 1:]
    k.copy_(batch.k)
    v.copy_(batch.v)

    assert torch.equal(written(replace(batch, k=k, v=v)).storage, written(batch).storage)


@pytest.mark.parametrize("layout", [PLANAR, PLANAR_2])
def test_a_cache_of_any_alignment_is_written(layout):
    batch = whole_pages(layout=layout)
    cache = written(batch)
    odd = {}
    for name in ("k", "v"):
        plane = getattr(cache, name)
        buffer = torch.zeros(plane.numel() * 2 + 1, dtype=torch.uint8)
        axes = sorted(range(4), key=plane.stride)
        steps = dict(zip(axes, (1, 49 if axes[0] == 3 else 17, 0, 0), strict=True))
        # Each axis is as far apart as the one below it is long, and a byte more.
        for below, axis in pairwise(axes[1:]):
            steps[axis] = steps[below] * plane.shape[below] + 1
        odd[name] = buffer[1:].as_strided(plane.shape, [steps[axis] for axis in range(4)])
    view = replace(CacheView(**cache.fields()), **odd, alignment=1)

    store(view, batch.k, batch.v, batch.slots)

    page, slot = batch.slots // 16, batch.slots % 16
    for name in ("k", "v"):
        assert torch.equal(odd[name][page, slot], getattr(cache, name)[page, slot])


def unrotated(y):
    """Return rows of 32 whose rotation is y, exact for small multiples of powers of two."""
    signs = rotate(torch.eye(32, dtype=torch.float64), 32)
    return (y.double() @ torch.linalg.inv(signs)).float()


def stored_codes(y):
    """Return codes (2, rows, 32) of K and V, scales and zero points, of rows that are y when rotated."""
    rows = len(y)
    batch = whole_pages(16, head_size=32)
    x = torch.zeros_like(batch.k)
    x[:rows, 0] = unrotated(y)
    assert torch.equal(rotate(x[:rows, 0], 32), y.double())
    cache = written(replace(batch, k=x, v=x))
    page, slot = batch.slots[:rows] // 16, batch.slots[:rows] % 16
    codes = [unpack_codes(plane[page, slot, 0]) for plane in (cache.k, cache.v)]
    return torch.stack(codes), *unpack_scale(torch.stack([s[page, slot, 0] for s in (cache.k_scale, cache.v_scale)]))


def test_halves_round_up_and_the_ends_of_a_range_stay_codes():
    """Steps of 1: values at every half; then a range whose zero point rounds up, so that its end would be 16."""
    halves = torch.arange(32.0).remainder(16) - 3.5
    halves[:2] = torch.tensor([-3.0, 12.0])
    shifted = torch.arange(32.0).remainder(16) - 2.25
    shifted[:2] = torch.tensor([-2.5, 12.5])
    high = torch.full((32,), 15.0)
    low = torch.full((32,), -15.0)
    y = torch.stack([halves.clamp(-3, 12), shifted.clamp(-2.5, 12.5), high, low, torch.zeros(32)])

    codes, scale, zero = stored_codes(y)
    due, due_scale, due_zero = quantize_int4(y)

    assert torch.equal(codes[0], codes[1])
    assert torch.equal(codes[0], due)
    assert torch.equal(zero[0].long(), due_zero)
    assert ((scale / due_scale - 1).abs() < 1e-6 * 2).all()


@pytest.mark.filterwarnings("ignore:(invalid value|overflow)")
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_row_that_is_not_finite_has_codes_of_zero_and_a_scale_of_nan(value):
    for batch in (whole_pages(16, head_size=64), rows_of((1, 17), head_size=64, padding=0)):
        bad = 5
        k, v = batch.k.clone(), batch.v.clone()
        k[bad, 0, 3:7] = v[bad, 0, 3:7] = value
        sound, cache = written(batch), written(replace(batch, k=k, v=v))
        page, slot = batch.slots // 16, batch.slots % 16
        others = torch.arange(len(page)) != bad
        for name in ("k", "v"):
            rows, scales = getattr(cache, name)[page, slot], getattr(cache, name + "_scale")[page, slot]
            assert not rows[bad].any()
            assert scales[bad].isnan().all()
            assert torch.equal(rows[others], getattr(sound, name)[page, slot][others])
            assert torch.equal(scales[others], getattr(sound, name + "_scale")[page, slot][others])
