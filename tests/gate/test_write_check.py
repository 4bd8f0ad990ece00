"""The write check: every stored row against its fp64 rotation, every other byte against what was there."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kvreg.core.layouts import INLINE, PLANAR, LayoutId
from kvreg.core.modes import Mode
from kvreg.gate import check_rotation, check_write, run_write, snapshot, write_checks
from kvreg.gate.specimen import Specimen
from kvreg.oracle import rotate, store, stored_rows
from kvreg.oracle.quantize import pack_scale, unpack_scale
from kvreg.testing import Batch, CacheBytes, allocate, build

INT4 = Mode.INT4_PER_TOKEN_HEAD
LAYOUTS = pytest.mark.parametrize("layout", [PLANAR, INLINE], ids=str)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return build("mixed", head_size=96, contexts=(1, 17, 64))


def found(batch: Batch, mode: Mode, spoil: Callable[[CacheBytes], None]) -> set[str]:
    """Checks that are red when an ideal write is followed by `spoil`."""
    cache = batch.cache(mode, lead=16, gap=32)

    def call() -> None:
        store(cache, batch.k, batch.v, batch.slots)
        spoil(cache)

    return set(run_write(call, batch, cache).checks)


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("mode", list(Mode), ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@LAYOUTS
def test_an_ideal_write_is_green(mode: Mode, dtype: str, layout: LayoutId, fp8: str) -> None:
    batch = build("mixed", head_size=40, contexts=(1, 17), page=48, dtype=dtype, layout=layout)
    cache = batch.cache(mode, fp8=fp8)

    report = run_write(lambda: store(cache, batch.k, batch.v, batch.slots), batch, cache)

    assert report.ok, report.failures
    assert [row.label for row in report.rows] == list(batch.labels)
    if mode is not Mode.NONE:
        assert 0.4 < max(row.max_step_error for row in report.rows) < 0.6


def test_the_handed_case_of_padding_slots_is_green_when_skipped_and_red_when_not() -> None:
    k, v = torch.randn((2, 8, 2, 96))
    slots = torch.tensor([0, 17, -1, 33, -1])

    def write(cache: CacheBytes, fault: str | None) -> set[str]:
        before = snapshot(cache)
        Specimen(fault).write(cache, k, v, slots)
        return set(check_write(cache, before, k, v, slots).checks)

    for mode in (Mode.NONE, INT4):
        cache = allocate(mode, pages=4, page=16, kv_heads=2, head_size=96, dtype="fp32", fill=0xA5)
        assert write(cache, None) == set()
        assert (cache.storage == 0xA5).sum() > cache.storage.numel() * 0.9
        cache.fill(0xA5)
        assert write(cache, "write_padding") == {"untouched"}


@pytest.mark.parametrize("mode", [Mode.NONE, INT4], ids=str)
@pytest.mark.parametrize("where", ["lead", "gap", "last", "last page", "row tail"])
def test_one_changed_byte_outside_the_written_rows_is_found(batch: Batch, mode: Mode, where: str) -> None:
    def spoil(cache: CacheBytes) -> None:
        pitch = (cache.storage.numel() - 16) // batch.pages
        offset = {
            "lead": 3,
            "gap": 16 + pitch - 5,
            "last": cache.storage.numel() - 1,
            "last page": 16 + (batch.pages - 1) * pitch + 7,
        }.get(where)
        if offset is not None:
            cache.storage[offset] ^= 1
            return
        # The slot behind the only token of a one-token sequence.
        index = batch.contexts.index(1)
        cache.k[int(batch.page_table[index, 0]), 1, 0].view(torch.uint8)[0] ^= 1

    assert found(batch, mode, spoil) == {"untouched"}


def test_one_flipped_bit_of_a_plain_row_is_found(batch: Batch) -> None:
    def spoil(cache: CacheBytes) -> None:
        slot = int(batch.slots[30])
        cache.v[slot // 16, slot % 16, 1, 95:].view(torch.int16)[0] ^= 1

    assert found(batch, Mode.NONE, spoil) == {"row_bits"}


def shifted_code(batch: Batch, away: bool) -> Callable[[CacheBytes], None]:
    """One code up by one, where its value was a fifth of a step above its input already, or below it."""

    def spoil(cache: CacheBytes) -> None:
        assert cache.k_scale is not None
        slot = int(batch.slots[40])
        at = (slot // 16, slot % 16)
        scale, _ = unpack_scale(cache.k_scale[at])
        rest = (stored_rows(cache, "k", *(torch.tensor(i) for i in at)) - rotate(batch.k[40], 96)) / scale[:, None]
        low = cache.k[at][0] & 15
        above = rest[0, 0::2] > 0.2 if away else rest[0, 0::2] < -0.2
        cache.k[at][0, int((above & (low < 15)).nonzero()[0])] += 1

    return spoil


def test_a_code_may_be_one_off_towards_its_input_but_not_away_from_it(batch: Batch) -> None:
    assert found(batch, INT4, shifted_code(batch, away=False)) == set()
    assert found(batch, INT4, shifted_code(batch, away=True)) == {"step"}


def scaled(batch: Batch, factor: float) -> Callable[[CacheBytes], None]:
    def spoil(cache: CacheBytes) -> None:
        assert cache.v_scale is not None
        slot = int(batch.slots[40])
        at = (slot // 16, slot % 16, 1)
        scale, zero = unpack_scale(cache.v_scale[at])
        cache.v_scale[at] = pack_scale(scale * factor, zero)

    return spoil


def test_a_scale_must_be_within_a_thousandth(batch: Batch) -> None:
    assert found(batch, INT4, scaled(batch, 1.002)) == {"scale"}
    assert found(batch, INT4, scaled(batch, 0.998)) == {"scale"}
    assert found(batch, INT4, scaled(batch, 1.0005)) == set()


def test_a_nan_scale_is_red_and_not_lost_in_a_maximum(batch: Batch) -> None:
    def spoil(cache: CacheBytes) -> None:
        assert cache.k_scale is not None
        slot = int(batch.slots[40])
        cache.k_scale[slot // 16, slot % 16, 0] = math.nan

    assert {"step", "scale"} <= found(batch, INT4, spoil)


def test_a_zero_point_off_by_one_is_red(batch: Batch) -> None:
    def spoil(cache: CacheBytes) -> None:
        assert cache.k_scale is not None
        slot = int(batch.slots[40])
        scale, zero = unpack_scale(cache.k_scale[slot // 16, slot % 16, 0])
        cache.k_scale[slot // 16, slot % 16, 0] = pack_scale(scale, zero + 1)

    assert "zero_point" in found(batch, INT4, spoil)


def test_failures_name_the_sequence_of_the_row(batch: Batch) -> None:
    cache = batch.cache(INT4)
    target = int((batch.row_sequence == 8).nonzero()[0])

    def call() -> None:
        store(cache, batch.k, batch.v, batch.slots)
        slot = int(batch.slots[target])
        cache.k[slot // 16, slot % 16] ^= 0xFF

    report = run_write(call, batch, cache)

    assert {f.where for f in report.failures} == {
        f.where for f in report.failures if f.where.startswith("sequence 8 ")
    }
    assert report.rows[8].max_step_error > 1.05 > report.rows[9].max_step_error


def test_a_non_finite_row_is_not_judged_but_must_stay_in_its_slot() -> None:
    k, v = torch.randn((2, 3, 1, 32))
    k[1] = math.nan
    slots = torch.tensor([4, 20, 7])

    for spills in (False, True):
        cache = allocate(INT4, pages=2, page=16, kv_heads=1, head_size=32, fill=0xA5)
        before = snapshot(cache)
        store(cache, k, v, slots)
        if spills:
            cache.k[1, 5] = 0
        report = check_write(cache, before, k, v, slots)
        assert report.checks == ({"untouched"} if spills else set())


def test_planes_in_buffers_of_their_own_are_watched_too() -> None:
    made = allocate(INT4, pages=2, page=16, kv_heads=1, head_size=32, fill=0xA5)

    class Decoupled:
        mode, head_size, kv_heads, page = INT4, 32, 1, 16
        k, v = made.k.clone(), made.v.clone()
        k_scale, v_scale = made.k_scale.clone(), made.v_scale.clone()

    cache = Decoupled()
    k, v = torch.randn((2, 1, 1, 32))
    for plane in (cache.k, cache.v, cache.k_scale, cache.v_scale):
        before = snapshot(cache)
        store(cache, k, v, torch.tensor([3]))
        plane[1, 9] = 0
        assert "untouched" in check_write(cache, before, k, v, torch.tensor([3])).checks


def test_every_check_that_is_red_for_a_spoiled_cache_is_one_of_its_mode(batch: Batch) -> None:
    for mode in Mode:
        assert found(batch, mode, lambda cache: cache.fill(0x5A)) <= set(write_checks(mode))
        assert found(batch, mode, lambda cache: cache.fill(0x5A)) >= set(write_checks(mode)) - {"zero_point"}


def test_the_rotation_limits_tell_fp32_from_bf16_and_from_none() -> None:
    rows = torch.randn((500, 128), generator=torch.Generator().manual_seed(1))
    exact = rotate(rows, 128)

    assert check_rotation(exact.float(), rows, 128, rounded=False).ok
    assert not check_rotation(exact.bfloat16(), rows, 128, rounded=False).ok
    assert check_rotation(exact.bfloat16(), rows, 128, rounded=True).ok
    unrotated = check_rotation(rows, rows, 128, rounded=True)
    assert not unrotated.ok
    assert unrotated.max_rel_error > 0.5
    assert not check_rotation(torch.full((1, 128), math.nan), rows[:1], 128, rounded=True).ok
    assert check_rotation(torch.zeros((1, 128)), torch.zeros((1, 128)), 128, rounded=False).max_rel_error == 0


INT8, FP8H, FP8T = Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR
EIGHT_BITS = pytest.mark.parametrize("mode", [INT8, FP8H, FP8T], ids=str)


def moved_code(batch: Batch, by: int) -> Callable[[CacheBytes], None]:
    """One code `by` places further from zero."""

    def spoil(cache: CacheBytes) -> None:
        slot = int(batch.slots[40])
        row = cache.v[slot // 16, slot % 16, 1].view(torch.int8 if cache.mode is INT8 else torch.uint8)
        magnitude = row.abs() if cache.mode is INT8 else row & 0x7F
        # A middling one: neither near the end of the range, nor below the smallest normal value.
        channel = int(((magnitude > 0x20) & (magnitude < 0x70)).nonzero()[0])
        row[channel] += by if row[channel] > 0 or cache.mode is not INT8 else -by

    return spoil


@EIGHT_BITS
def test_a_code_that_is_one_off_is_a_wrong_step_and_two_off_is_a_wrong_code(batch: Batch, mode: Mode) -> None:
    assert found(batch, mode, moved_code(batch, 1)) == {"step"}
    assert found(batch, mode, moved_code(batch, 2)) == {"step", "code"}


@EIGHT_BITS
def test_halves_may_fall_either_way(mode: Mode) -> None:
    fp8 = torch.tensor([1.0625, 448.0] + [0.0] * 30)
    row = torch.tensor([2.5, 127.0] + [0.0] * 30) if mode is INT8 else fp8
    k = v = row.view(1, 1, 32)

    for way in (0, 1):
        cache = allocate(mode, pages=1, page=16, kv_heads=1, head_size=32, tensor_scales=(1.0, 1.0))
        before = snapshot(cache)
        store(cache, k, v, torch.tensor([4]))
        cache.k.view(torch.uint8)[0, 4, 0, 0] = (2 if mode is INT8 else 0x38) + way
        assert check_write(cache, before, k, v, torch.tensor([4])).ok


@pytest.mark.parametrize("mode", [INT8, FP8H], ids=str)
def test_a_scale_a_row_must_be_within_a_thousandth(batch: Batch, mode: Mode) -> None:
    def by(factor: float) -> Callable[[CacheBytes], None]:
        def spoil(cache: CacheBytes) -> None:
            assert cache.k_scale is not None
            slot = int(batch.slots[40])
            cache.k_scale[slot // 16, slot % 16, 0] *= factor

        return spoil

    assert "scale" in found(batch, mode, by(1.002))
    assert "scale" in found(batch, mode, by(0.998))
    assert "scale" in found(batch, mode, by(math.nan))
    assert "scale" not in found(batch, mode, by(1.0005))


def unfinished(mode: Mode, bad: float, spoil: Callable[[CacheBytes], None]) -> set[str]:
    """Checks that are red when a row that is not finite is stored well and then spoiled; its slot is 4."""
    k, v = torch.randn((2, 3, 1, 32), generator=torch.Generator().manual_seed(9))
    k[1, 0, 9] = bad
    cache = allocate(mode, pages=1, page=16, kv_heads=1, head_size=32, fill=0xA5, tensor_scales=(1.0, 1.0))
    before = snapshot(cache)
    slots = torch.tensor([3, 4, 5])
    store(cache, k, v, slots)
    spoil(cache)
    return set(check_write(cache, before, k, v, slots).checks)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", [INT8, FP8H], ids=str)
def test_the_scale_of_a_row_that_is_not_finite_must_be_nan_whatever_its_codes(mode: Mode, bad: float) -> None:
    def other_codes(cache: CacheBytes) -> None:
        cache.k.view(torch.uint8)[0, 4] = 17

    def finite_scale(cache: CacheBytes) -> None:
        assert cache.k_scale is not None
        cache.k_scale[0, 4] = 1.0

    assert unfinished(mode, bad, other_codes) == set()
    assert unfinished(mode, bad, finite_scale) == {"scale"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_must_be_nan_where_rows_have_no_scale(bad: float) -> None:
    def put(channel: int | slice, code: int) -> Callable[[CacheBytes], None]:
        def spoil(cache: CacheBytes) -> None:
            cache.k.view(torch.uint8)[0, 4, 0, channel] = code

        return spoil

    assert unfinished(FP8T, bad, put(9, 0xFF)) == set()
    assert unfinished(FP8T, bad, put(slice(None), 0x7F)) == set()
    assert unfinished(FP8T, bad, put(9, 0x7E)) == {"step"}
    assert unfinished(FP8T, bad, put(9, 0x00)) == {"step"}
    assert "step" in unfinished(FP8T, bad, put(10, 0x7E))


@pytest.mark.parametrize("mode", [FP8H, FP8T], ids=str)
def test_a_finite_value_that_is_stored_as_nan_is_red(batch: Batch, mode: Mode) -> None:
    def spoil(cache: CacheBytes) -> None:
        slot = int(batch.slots[40])
        cache.k.view(torch.uint8)[slot // 16, slot % 16, 0, 3] = 0x7F

    assert "step" in found(batch, mode, spoil)


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
def test_zero_of_either_sign_is_zero_where_the_type_has_both(fp8: str) -> None:
    k = v = torch.tensor([0.0, -0.0] + [1.0] * 30).view(1, 1, 32)
    cache = allocate(FP8H, pages=1, page=16, kv_heads=1, head_size=32, fp8=fp8)
    before = snapshot(cache)
    store(cache, k, v, torch.tensor([4]))

    cache.k.view(torch.uint8)[0, 4, 0, :2] = torch.tensor([0x80, 0x00], dtype=torch.uint8)

    assert check_write(cache, before, k, v, torch.tensor([4])).ok == (fp8 == "e4m3fn")
