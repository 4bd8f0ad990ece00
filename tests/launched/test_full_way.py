"""Calls that are checked whatever came before them: wrong ones, and those that no recording could stand for."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import caches
import pytest
import torch
from step import CONTEXT, FULL_WAY, HEAD, INT4, KV_HEADS, Q_HEADS, N, Step
from torch.utils._python_dispatch import TorchDispatchMode

import kvreg
from kvreg.core.errors import KvregError
from kvreg.core.requests import Op
from kvreg.core.variants import VariantId
from kvreg.runtime import call_facts
from kvreg.runtime.replay import Known
from kvreg_triton.launch import compile_only


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
        "out over lengths": {
            "out": (under := torch.zeros_like(q)), "seq_lens": under.flatten()[:2 * N].view(torch.int32),
        },
        "a word for return_lse": {"return_lse": "no"},
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
    """After right calls that look alike: of scale 1, window 1, softcap 1, out and sinks given, lse returned."""
    step, text = Step(), []
    given = {"out": torch.empty_like(step.q), "sinks": torch.ones(Q_HEADS), "causal": torch.ones(N, dtype=torch.bool)}
    for name, value in {"causal": True, "scale": 1, "window": 1, "softcap": 1}.items():
        step.attend(**{name: value})
    for name, value in given.items():
        step.attend(**{name: value})
    step.attend(return_lse=True)
    known, driver.launches[:] = step.cache.known, []
    assert len(known) == 8
    for knows in (known, None):
        step.cache.known = knows
        with pytest.raises(Exception) as caught:  # noqa: PT011
            step.attend(**wrong_calls(step)[case])
        text.append((caught.type, str(caught.value)))

    assert text[0] == text[1]
    assert issubclass(text[0][0], KvregError)
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
    """As torch's own for counting or faking; an operation below it would import torch's compiler, which takes 6 s."""


def test_a_dispatch_mode_goes_the_full_way():
    """It may hand out tensors without memory, or want to see every operation."""
    step = Step()
    step.write()
    assert call_facts.of_write(step.cache, step.k, step.v, step.slots).is_known
    torch._C._push_on_torch_dispatch_stack(Watching())
    try:
        assert call_facts.of_write(step.cache, step.k, step.v, step.slots) is None
    finally:
        torch._C._pop_torch_dispatch_stack(None)


class Own(torch.Tensor):
    """A subclass, which may have its own way with memory."""


def test_a_subclass_of_a_tensor_goes_the_full_way(called):
    step = Step()
    own = step.q.as_subclass(Own)
    step.attend()
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


LAUNCHERS = {
    "does more than submit": "WRITE(*args)",
    "hands over a tensor of its own": "WRITE(args[0], args[1].clone(), *args[2:])\n\nlaunch.only_submits = True",
    "submits nothing": "pass\n\nlaunch.only_submits = True",
}


@pytest.mark.parametrize("does", LAUNCHERS)
def test_a_launcher_that_a_recording_cannot_stand_for_is_called_every_time(does, tmp_path, monkeypatch, driver):
    """One that does not say `only_submits` may do what a replay would leave out."""
    module = "launcher_that_" + does.replace(" ", "_")
    text = ("from kvreg_cuda.write_int4 import WRITE", "made = []", "def launch(*args):", "    made.append(args)")
    (tmp_path / (module + ".py")).write_text("\n".join(text) + "\n    " + LAUNCHERS[does] + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    selection = caches.select(INT4, HEAD, Q_HEADS, KV_HEADS)
    chosen = replace(
        selection.result.ops[Op.WRITE], launcher=module + ":launch", variant=str(VariantId("other-write", 1))
    )
    result = replace(selection.result, ops={**selection.result.ops, Op.WRITE: chosen})
    step = Step()
    step.cache = caches.cache(replace(selection, results=(result,)), 4)
    step.cache.known = Known()
    for _ in range(3):
        step.write()

    assert len(importlib.import_module(module).made) == 3
    assert len(driver.launches) == (0 if does == "submits nothing" else 3)
    assert not len(step.cache.known)
