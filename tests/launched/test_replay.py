"""A call that equals an earlier one makes its launches again with its own addresses, and any other goes the full way.

Caches lie in the host's memory and are told to know calls, as a card's are; the launches are those of an H200.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import caches
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kvreg
from kvreg.core.errors import KvregError
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import VariantId
from kvreg.runtime.replay import MOST_CALLS, Known
from kvreg_triton.submission import compile_only

N, CONTEXT, HEAD, Q_HEADS, KV_HEADS = 4, 4096, 128, 8, 2
FULL_WAY = {"checks.py:attend_call", "checks.py:write_call"}
MODES = [mode.value for mode in Mode]
INT4 = "int4_per_token_head"


class Step:
    """A cache that knows calls, and the tensors of a batch, which change with `renewed`."""

    def __init__(self, mode: str = INT4, **planned: Any) -> None:
        self.planned = planned
        self.selection = caches.select(mode, HEAD, Q_HEADS, KV_HEADS)
        self.cache = caches.cache(self.selection, CONTEXT // 16)
        self.cache.known = Known()
        self.rows = planned.pop("rows", N)
        self.alive: list[Any] = []
        self.renewed()

    def renewed(self) -> None:
        """Lay all tensors of a call down anew; the old ones stay, so that no address comes twice."""
        self.alive.append(vars(self).copy())
        self.q = torch.zeros(self.rows, Q_HEADS, HEAD, dtype=torch.bfloat16)
        self.k, self.v = (torch.zeros(self.rows, KV_HEADS, HEAD, dtype=torch.bfloat16) for _ in range(2))
        self.slots = torch.arange(self.rows)
        self.seq_lens = torch.full((N,), CONTEXT, dtype=torch.int32)
        self.cu_q = torch.arange(N + 1, dtype=torch.int32) * (self.rows // N)
        self.table = torch.zeros(N, CONTEXT // 16, dtype=torch.int32)
        self.plan = kvreg.plan(self.cache, self.cu_q, self.seq_lens, max_context=CONTEXT, **self.planned)

    def attend(self, **changed: Any) -> Any:
        made = {"q": self.q, "cache": self.cache, "page_table": self.table, "seq_lens": self.seq_lens,
                "cu_q": self.cu_q, "plan": self.plan}  # fmt: skip
        result = kvreg.attend(**{**made, **changed})
        self.alive.append(result)
        return result

    def write(self, **changed: Any) -> None:
        kvreg.write(**{"cache": self.cache, "k": self.k, "v": self.v, "slots": self.slots, **changed})


@pytest.fixture
def launches(driver):
    """Return a function that makes a call and returns its launches, addresses of its results by name."""

    def of(call: Any) -> list[Any]:
        driver.launches.clear()
        results = call()
        results = results if isinstance(results, tuple) else (results,)
        named = {each.data_ptr(): f"result {place}" for place, each in enumerate(results) if each is not None}
        return [(*launch[:-1], tuple(named.get(value, value) for value in launch[-1])) for launch in driver.launches]

    return of


@pytest.fixture
def again(launches, called, listening):
    """Return a function that says that a call is replayed and makes the launches that Triton makes of the full way."""

    def check(call: Any) -> None:
        with listening() as told:
            wanted = launches(call)
        assert len(told) == len(wanted) > 0
        assert launches(call) == wanted
        found = []
        assert not FULL_WAY & called(lambda: found.extend(launches(call)))
        assert found == wanted

    return check


PLANS = {
    "whole": {"batch_invariant": False},
    "of a fixed cut": {"batch_invariant": True},
    "in shares": {"total_context": 2 * CONTEXT},
    "prefill": {"rows": 4 * N},
}


@pytest.mark.parametrize("mode", MODES)
def test_writes_are_made_again(mode, again):
    step = Step(mode)
    again(step.write)
    step.renewed()
    again(step.write)

    assert len(step.cache.known) == 1


@pytest.mark.parametrize("planned", PLANS)
@pytest.mark.parametrize("mode", MODES)
def test_attention_is_made_again(mode, planned, again):
    """With results made by the call or given, with lse or without, and with every tensor elsewhere."""
    step = Step(mode, **PLANS[planned])
    for count in (1, 1):
        again(step.attend)
        again(lambda: step.attend(return_lse=True))
        out = torch.empty_like(step.q)
        again(lambda: step.attend(out=out))  # noqa: B023
        step.renewed()
        assert len(step.cache.known) == 3 * count


HEADS = torch.ones(Q_HEADS), torch.zeros(Q_HEADS)
FEATURES: dict[str, Any] = {
    "not causal": {"causal": False},
    "causal by sequence": {"causal": torch.ones(N, dtype=torch.bool)},
    "window": {"window": 512},
    "a window of one": {"window": 1},
    "softcap": {"softcap": 30.0},
    "an integer softcap": {"softcap": 30},
    "sinks": {"sinks": HEADS[0]},
    "alibi": {"alibi": HEADS[1]},
    "sinks and slopes": {"sinks": HEADS[0], "alibi": HEADS[1]},
    "sinks of a model": {"sinks": torch.nn.Parameter(HEADS[0])},
    "scale": {"scale": 0.25},
}
SAME = ("an integer softcap", "sinks of a model")
"""Those whose facts are the ones of the line above or before."""


@pytest.mark.parametrize("mode", ["none", INT4, "int8_per_token_head"])
def test_features_are_made_again_and_never_in_each_others_place(mode, again, called):
    step = Step(mode)
    for name, changed in FEATURES.items():
        known = len(step.cache.known)
        if name not in SAME:
            assert called(lambda: step.attend(**changed)) & FULL_WAY, name  # noqa: B023
        again(lambda: step.attend(**changed))  # noqa: B023
        assert len(step.cache.known) == known + (name not in SAME)
    other = {"sinks": torch.zeros(Q_HEADS), "alibi": torch.ones(Q_HEADS)}
    again(lambda: step.attend(**other))


def offset(tensor: torch.Tensor, count: int = 1) -> torch.Tensor:
    """Return a copy that begins `count` elements behind an aligned address."""
    flat = torch.zeros(tensor.numel() + 16, dtype=tensor.dtype)[count : count + tensor.numel()]
    return flat.view(tensor.shape).copy_(tensor)


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with its rows further apart."""
    wide = torch.zeros(tensor.shape[0], 3 * tensor[0].numel(), dtype=tensor.dtype)
    return wide[:, : tensor[0].numel()].unflatten(1, tensor.shape[1:]).copy_(tensor)


def attention_changes(step: Step) -> dict[str, dict[str, Any]]:
    longer = kvreg.plan(step.cache, step.cu_q, step.seq_lens, max_context=CONTEXT, batch_invariant=True)
    split = replace(step.plan.split, partial_out=offset(step.plan.split.partial_out))
    halves = replace(step.plan.split, partial_lse=step.plan.split.partial_lse.half())
    fewer = kvreg.plan(step.cache, step.cu_q[:-1], step.seq_lens[:-1], max_context=CONTEXT)
    return {
        "fewer rows": {"q": step.q[:3], "cu_q": step.cu_q.clamp(max=3)},
        "rows apart": {"q": apart(step.q)},
        "q unaligned": {"q": offset(step.q)},
        "lengths unaligned": {"seq_lens": offset(step.seq_lens)},
        "offsets unaligned": {"cu_q": offset(step.cu_q)},
        "a wider table": {"page_table": torch.cat([step.table, step.table], 1)},
        "a table's rows apart": {"page_table": apart(step.table)},
        "a table unaligned": {"page_table": offset(step.table)},
        "another plan": {"plan": longer},
        "a workspace unaligned": {"plan": replace(step.plan, split=split)},
        "a workspace of another type": {"plan": replace(step.plan, split=halves)},
        "fewer sequences": {"plan": fewer, "q": step.q[:3], "page_table": step.table[:3],
                            "seq_lens": step.seq_lens[:3], "cu_q": step.cu_q[:4]},
        "out apart": {"out": apart(step.q)},
        "lse": {"return_lse": True},
    }  # fmt: skip


CHANGES = tuple(attention_changes(Step()))


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_of_other_facts_goes_the_full_way_once(change, again, called):
    """It makes the launches that it would make without any earlier call, and so does the earlier call after it."""
    step = Step()
    assert step.plan.split.splits > 1
    step.attend()
    changed = attention_changes(step)[change]

    assert called(lambda: step.attend(**changed)) & FULL_WAY
    again(lambda: step.attend(**changed))
    again(step.attend)


@pytest.mark.parametrize("change", ["slots of 32 bits", "fewer slots", "rows apart", "unaligned", "slots unaligned"])
def test_a_write_of_other_facts_goes_the_full_way_once(change, again, called):
    step = Step("fp8_per_tensor")
    step.write()
    changed = {
        "slots of 32 bits": {"slots": step.slots.int()},
        "fewer slots": {"slots": step.slots[:3]},
        "rows apart": {"k": apart(step.k)},
        "unaligned": {"v": offset(step.v)},
        "slots unaligned": {"slots": offset(step.slots)},
    }[change]

    assert called(lambda: step.write(**changed)) & FULL_WAY
    again(lambda: step.write(**changed))
    again(step.write)


def test_scales_that_their_owner_lays_elsewhere_are_followed(launches, again):
    """A model that loads its weights after its caches may give its parameter other memory."""
    step = Step("fp8_per_tensor")
    scales = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    step.cache = caches.cache(step.selection, CONTEXT // 16, tensor_scales=scales)
    step.cache.known = Known()
    step.write()
    kept, scales.data = scales.data, torch.full((2,), 0.5)

    again(step.write)
    assert scales.data_ptr() in launches(step.write)[0][-1]
    assert kept.data_ptr() not in launches(step.write)[0][-1]


def test_a_longer_step_with_the_same_cut_is_made_again(called):
    """Each token of a decoding batch makes max_context longer; only the width of the table has to follow."""
    step = Step()
    step.attend()
    shorter = replace(step.plan, max_context=CONTEXT - 5)

    assert not called(lambda: step.attend(plan=shorter)) & FULL_WAY


def wrong_calls(step: Step) -> dict[str, dict[str, Any]]:
    """Calls that differ from a right one in one argument, and must not be taken for it."""
    q, table = step.q, step.table
    other = Step(INT4)
    return {
        "q of fp16": {"q": q.half()},
        "q of other heads": {"q": q[:, :4]},
        "q transposed": {"q": q.transpose(1, 2).contiguous().transpose(1, 2)},
        "q a list": {"q": [1.0]},
        "q sparse": {"q": q.to_sparse()},
        "q on another device": {"q": q.to("meta")},
        "lengths of 64 bits": {"seq_lens": step.seq_lens.long()},
        "lengths of two axes": {"seq_lens": step.seq_lens[:, None]},
        "lengths apart": {"seq_lens": step.seq_lens.repeat(2)[::2]},
        "a missing offset": {"cu_q": step.cu_q[:-1]},
        "a table that is too narrow": {"page_table": table[:, :-1]},
        "a table for fewer sequences": {"page_table": table[:-1]},
        "a flat table": {"page_table": table.flatten()},
        "a table by columns": {"page_table": table.t().contiguous().t()},
        "a plan for a longer context": {"plan": replace(step.plan, max_context=CONTEXT + 1)},
        "a plan for fewer sequences": {"plan": replace(step.plan, n_seqs=N - 1)},
        "a plan for another kind": {"plan": replace(step.plan, kind=replace(step.cache.kind, page=32))},
        "no plan": {"plan": None},
        "no cache": {"cache": None},
        "out over q": {"out": q},
        "out over the cache": {
            "out": step.cache.buffer[: q.numel() * 2].view(torch.bfloat16).view(q.shape)
        },
        "out of fewer rows": {"out": torch.empty_like(q)[:-1]},
        "a bool for scale": {"scale": True},
        "nan for scale": {"scale": float("nan")},
        "a text for scale": {"scale": "1"},
        "a tensor for scale": {"scale": torch.tensor(1.0)},
        "a bool for window": {"window": True},
        "no window": {"window": 0},
        "a bool for softcap": {"softcap": True},
        "None for causal": {"causal": None},
        "1 for causal": {"causal": 1},
        "sinks of fewer heads": {"sinks": torch.ones(Q_HEADS - 1)},
        "sinks of fp16": {"sinks": torch.ones(Q_HEADS).half()},
        "a sequence too few for causal": {"causal": torch.ones(N - 1, dtype=torch.bool)},
        "ranges of two axes": {"prefix_ranges": torch.zeros(N, 2, dtype=torch.int32)},
        "a plan of another cache": {"plan": other.plan, "q": q.float()},
    }  # fmt: skip


@pytest.mark.parametrize("case", tuple(wrong_calls(Step())))
def test_errors_are_those_of_a_cache_that_knows_nothing(case, driver):
    """After right calls that look alike: of scale 1, window 1, softcap 1, out and sinks given."""
    step, text = Step(), []
    for plain in ({}, {"scale": 1}, {"window": 1}, {"softcap": 1}, {"out": torch.empty_like(step.q)},
                  {"sinks": HEADS[0]}, {"causal": True}, {"causal": torch.ones(N, dtype=torch.bool)}):  # fmt: skip
        step.attend(**plain)
    known, driver.launches[:] = step.cache.known, []
    assert len(known) == 7
    for knows in (known, None):
        step.cache.known = knows
        with pytest.raises(Exception) as caught:  # noqa: PT011
            step.attend(**wrong_calls(step)[case])
        text.append((caught.type, str(caught.value)))

    assert text[0] == text[1]
    assert case == "q sparse" or issubclass(text[0][0], KvregError)
    assert not driver.launches


def test_out_is_looked_at_in_every_call(again, driver):
    """Its address is no fact, and the same shape may lie beside q once and over it the next time."""
    step = Step()
    both = torch.zeros(2 * N, Q_HEADS, HEAD, dtype=torch.bfloat16)
    step.q = both[:N]
    again(lambda: step.attend(out=both[N:]))
    driver.launches.clear()

    with pytest.raises(kvreg.errors.CallError, match="memory of its own"):
        step.attend(out=both[1 : N + 1])
    assert not driver.launches


def test_an_unaligned_output_goes_the_full_way(called, launches, listening):
    """Kernels of a known call were compiled for what an allocator gives."""
    step = Step()
    out = torch.empty_like(step.q)
    step.attend(out=out)
    odd = offset(out)
    with listening():
        wanted = launches(lambda: step.attend(out=odd))

    assert called(lambda: step.attend(out=odd)) & FULL_WAY
    assert launches(lambda: step.attend(out=odd)) == wanted
    assert not called(lambda: step.attend(out=out)) & FULL_WAY


@pytest.mark.parametrize("changed", [
    {"causal": [True] * N}, {"prefix_ranges": torch.zeros(N, 1, 2, dtype=torch.int32)},
], ids=["a list for causal", "ranges"])  # fmt: skip
def test_calls_that_make_tensors_go_the_full_way(changed, called):
    step = Step()
    step.attend(**changed)

    assert called(lambda: step.attend(**changed)) & FULL_WAY
    assert not len(step.cache.known)


def test_one_tensor_in_two_places_goes_the_full_way(called, launches):
    """From a launch alone it cannot be told which of the two was meant."""
    step = Step()
    step.write(v=step.k)
    assert called(lambda: step.write(v=step.k)) & FULL_WAY

    assert {step.k.data_ptr(), step.v.data_ptr()} <= set(launches(step.write)[0][-1])


def test_no_rows_are_no_call(driver):
    step = Step()
    for _ in range(2):
        step.attend(q=step.q[:0], cu_q=torch.zeros_like(step.cu_q))
        step.write(slots=step.slots[:0])

    assert not driver.launches
    assert not len(step.cache.known)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_and_a_subclass_see_the_full_way(called):
    class Own(torch.Tensor):
        pass

    step = Step()
    step.attend()
    # As `with Watching()` does, but that torch then imports its compiler, which takes 7 s.
    torch._C._push_on_torch_dispatch_stack(Watching())
    try:
        assert called(step.attend) & FULL_WAY
    finally:
        torch._C._pop_torch_dispatch_stack(None)
    own = step.q.as_subclass(Own)
    step.attend(q=own)
    assert called(lambda: step.attend(q=own)) & FULL_WAY


def test_compile_only_compiles_known_calls(driver):
    step = Step()
    step.attend()
    step.attend()
    driver.launches.clear()
    with compile_only() as compiled:
        step.attend()

    assert len(compiled) == 2
    assert not driver.launches


def test_a_profiler_is_told_of_known_calls(listening):
    step = Step()
    step.attend()
    with listening() as told:
        step.attend()

    assert len(told) == 2


def test_streams_are_those_of_each_call(driver, launches):
    step = Step()
    step.attend()
    driver.stream = 11
    try:
        assert [launch[3] for launch in launches(step.attend)] == [11, 11]
    finally:
        driver.stream = 7


LAUNCHER = """
from kvreg_cuda.write_int4 import WRITE

made = []

def launch(*args):
    made.append(len(args))
    WRITE(*args)
"""


def test_a_launcher_that_does_more_than_submit_is_called_every_time(tmp_path, monkeypatch, driver):
    """One that does not say `only_submits` may do what a replay would leave out."""
    (tmp_path / "more_than_launches.py").write_text(LAUNCHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    selection = caches.select(INT4, HEAD, Q_HEADS, KV_HEADS)
    chosen = replace(selection.result.ops[Op.WRITE], launcher="more_than_launches:launch",
                     variant=str(VariantId("other-write", 1)))  # fmt: skip
    result = replace(selection.result, ops={**selection.result.ops, Op.WRITE: chosen})
    step = Step()
    step.cache = caches.cache(replace(selection, results=(result,)), 4)
    step.cache.known = Known()
    for _ in range(3):
        step.write()

    import more_than_launches

    assert len(more_than_launches.made) == len(driver.launches) == 3
    assert not len(step.cache.known)


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
    step.cache = copy.deepcopy(step.cache)
    step.renewed()

    assert not len(step.cache.known)
    again(step.attend)


def test_the_oldest_calls_make_way(called):
    step = Step()
    scales = [1 + place / 8 for place in range(MOST_CALLS + 3)]
    for scale in scales:
        step.attend(scale=scale)

    assert len(step.cache.known) == MOST_CALLS
    assert not called(lambda: step.attend(scale=scales[3])) & FULL_WAY
    assert called(lambda: step.attend(scale=scales[2])) & FULL_WAY


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
