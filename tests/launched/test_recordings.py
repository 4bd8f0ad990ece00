"""How long recordings live, how many there are, and who shares them."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import caches
import torch
from step import FULL_WAY, HEAD, INT4, KV_HEADS, Q_HEADS, Step

import kvreg
from kvreg.runtime.replay import MOST_CALLS, Known


def test_recordings_hold_no_tensor_and_end_with_their_cache():
    """Without the garbage collector: a cycle would keep a card's memory until it runs."""
    gc.disable()
    try:
        step = Step()
        step.alive.clear()
        out = torch.empty_like(step.q)
        for _ in range(2):
            kvreg.attend(step.q, step.cache, step.table, step.seq_lens, step.cu_q, step.plan, out=out)
            step.write()
        split = step.plan.split
        held = {name: weakref.ref(each) for name, each in (
            ("q", step.q), ("out", out), ("table", step.table), ("sums", split.partial_out), ("k", step.k),
        )}  # fmt: skip
        of_cache = {"known": weakref.ref(step.cache.known), "bytes": weakref.ref(step.cache.buffer),
                    "view": weakref.ref(step.cache.view.k)}  # fmt: skip
        assert len(step.cache.known) == 2
        del out, split, step.q, step.table, step.plan, step.k

        assert [name for name, each in held.items() if each() is not None] == []
        del step.cache
        assert [name for name, each in of_cache.items() if each() is not None] == []
    finally:
        gc.enable()


def test_a_copy_of_a_cache_knows_no_call(again):
    step = Step()
    step.attend()
    first, step.cache = step.cache, copy.deepcopy(step.cache)
    step.renewed()

    assert step.cache.known is None  # as every cache on the cpu; on a card it is one's own
    step.cache.known = Known()
    again(step.attend)
    assert (len(step.cache.known), len(first.known)) == (1, 1)


def test_the_oldest_calls_make_way(called):
    step = Step()
    scales = [1 + place / 8 for place in range(MOST_CALLS + 3)]
    for scale in scales:
        step.attend(scale=scale)

    assert len(step.cache.known) == MOST_CALLS
    assert not called(lambda: step.attend(scale=scales[3])) & FULL_WAY
    assert called(lambda: step.attend(scale=scales[2])) & FULL_WAY


def test_a_call_that_two_threads_record_takes_one_place(driver, called):
    step = Step()
    scales = [1 + place / 8 for place in range(MOST_CALLS)]
    for scale in scales[:-1]:
        step.attend(scale=scale)

    driver.meanwhile = lambda: step.attend(scale=scales[-1])
    step.attend(scale=scales[-1])
    assert driver.meanwhile is None
    assert len(step.cache.known) == MOST_CALLS
    assert not called(lambda: step.attend(scale=scales[0])) & FULL_WAY


def test_threads_share_a_cache(driver):
    """Each launch carries what its own call gave it, whoever recorded."""
    step, calls = Step(), 60
    wanted: list[tuple[int, float]] = []
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for turn in range(calls):
                q, scale = torch.zeros_like(step.q), float(1 + (first + turn) % (MOST_CALLS + 8))
                out = torch.empty_like(q)
                wanted.append((q.data_ptr(), scale))
                kept.append((q, out))
                kvreg.attend(q, step.cache, step.table, step.seq_lens, step.cu_q, step.plan, out=out, scale=scale)
        except BaseException as error:
            failed.append(error)

    kept: list[Any] = []
    threads = [threading.Thread(target=work, args=(place * 20,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed
    assert len(step.cache.known) == MOST_CALLS
    made = [(launch[-1][0], next(x for x in launch[-1] if isinstance(x, float) and x >= 1)) for launch in
            driver.launches if launch[-1][0] in dict(wanted)]  # fmt: skip
    assert sorted(made) == sorted(wanted)


def test_caches_on_the_cpu_know_no_calls():
    """Values are checked there in every call."""
    assert caches.cache(caches.select(INT4, HEAD, Q_HEADS, KV_HEADS), 4).known is None
