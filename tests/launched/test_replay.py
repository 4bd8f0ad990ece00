"""A call that equals an earlier one makes its launches again with its own addresses, and any other goes the full way.

Caches lie in the host's memory and are told to know calls, as a card's are; the launches are those of an H200.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import caches
import pytest
import torch
from step import CONTEXT, FULL_WAY, INT4, Q_HEADS, N, Step, apart, offset

import kvreg
from kvreg.core.modes import Mode
from kvreg.runtime import call_facts
from kvreg.runtime.replay import Known

MODES = [mode.value for mode in Mode]
HEADS = torch.ones(Q_HEADS), torch.zeros(Q_HEADS)

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


FEATURES: dict[str, Any] = {
    "causal": {"causal": True},
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
    assert len(step.cache.known) == 1
    assert not called(lambda: step.attend(out=out)) & FULL_WAY


def test_an_allocator_that_aligns_less_leads_to_the_full_way(driver):
    """Results that a call makes itself are no part of its facts."""
    step = Step()
    arguments = (step.q, step.cache, step.table, step.seq_lens, step.cu_q, step.plan, None, None, True)
    step.attend()
    driver.launches.clear()
    asked = call_facts.of_attend(*arguments, None, None, None, None, None, False)

    assert asked.is_known
    assert not asked.again(offset(step.q), None)
    assert not driver.launches
