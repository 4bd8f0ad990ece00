"""Repeated writes: equal bytes are reported as such, and a write that flips is counted."""

from __future__ import annotations

import itertools

from kvreg.core.modes import Mode
from kvreg.testing import MARK_BYTE, allocate
from kvreg.validation import determinism


def cache():
    return allocate(Mode.INT4_PER_TOKEN_HEAD, pages=2, page=16, kv_heads=2, head_size=64)


def test_a_steady_write_never_differs() -> None:
    found = determinism.repeat_writes("torch-int4-write@1", "cpu", "cpu", 20, 2, 96, repeats=4)

    assert (found["repeats"], found["differing"], found["most_bytes"]) == (4, 0, 0)
    assert found["bytes"] == 2 * 16 * 2 * (96 + 8)


def test_a_write_that_flips_one_byte_now_and_then_is_counted() -> None:
    calls = itertools.count()

    def flips(into) -> None:
        into.storage.zero_()
        if next(calls) % 7 == 5:
            into.storage[3] = 1

    found = determinism._repeat(flips, cache, "cpu", 40)

    assert 0 < found["differing"] < 40
    assert found["most_bytes"] == 1


def test_every_repeat_starts_from_poisoned_bytes() -> None:
    seen = []

    def remembers(into) -> None:
        seen.append((into.storage.data_ptr(), int(into.storage[0])))
        into.storage[:8] = 7

    determinism._repeat(remembers, cache, "cpu", 3)

    under_test = [value for place, value in seen if place == seen[0][0]]
    assert under_test[-3:] == [MARK_BYTE] * 3
