"""Measuring on the cpu device: every kernel of a shape is timed and judged by the rows that it read."""

from __future__ import annotations

import pytest
import torch

from kvreg.bench import own_calls, peer_calls, shapes
from kvreg.bench.contender import result_error
from kvreg.bench.material import build
from kvreg.bench.measuring import measure
from kvreg.bench.subjects import Subject, fitting, plan, selected
from kvreg.core import resolve
from kvreg.core.modes import Mode

CPU = resolve.resolve("cpu").device


@pytest.mark.parametrize("shape", shapes.SMOKE, ids=lambda shape: shape.work)
def test_each_kernel_of_a_shape_is_timed_and_within_rounding(shape: shapes.Shape) -> None:
    subjects = plan(shape, CPU, list(Mode), every=True, vllm=False).subjects

    rows = measure(shape.to_json(), [each.to_json() for each in subjects], "cpu", "cpu", None)

    assert {each.maker for each in subjects} == ({"kvreg"} if shape.work == "write" else {"kvreg", "sdpa"})
    assert {each.mode for each in subjects} == {mode.value for mode in Mode}
    for subject, row in zip(subjects, rows, strict=True):
        assert row["status"] == "ok", (subject.name, row)
        assert row["us"] > 0
        assert row["samples"] >= 3
        assert row["method"] == "host"
        assert (row["e"] is None) if shape.work == "write" else 0 < row["e"] < 5e-3


def test_a_kernel_that_cannot_be_made_is_a_row_beside_the_others() -> None:
    shape = shapes.SMOKE[0]
    (good,) = fitting(shape, CPU, Mode.NONE)
    bad = Subject("kvreg", "none", good.name, {"no_such_parameter": 1})

    rows = measure(shape.to_json(), [bad.to_json(), good.to_json()], "cpu", "cpu", None)

    assert [row["status"] for row in rows] == ["error", "ok"]
    assert "KeyError" in rows[0]["detail"]


def test_e_is_of_the_rows_that_were_read() -> None:
    shape = shapes.SMOKE[0]
    (subject,) = fitting(shape, CPU, Mode.INT4_PER_TOKEN_HEAD)
    material = build(shape, "cpu")
    contender = own_calls.prepare(subject, material, CPU, 2)
    cache = contender.calls[0].args[1]

    before = contender.error()
    cache.buffer[:64] ^= 0xFF  # the reference reads the same bytes
    after = contender.error()

    assert before < 5e-3
    assert after < 5e-3
    assert before != after
    assert result_error(material, torch.zeros_like(material.q), cache.view) == pytest.approx(1.0)


def test_compiling_over_one_page_makes_the_same_launches() -> None:
    shape = shapes.SMOKE[0]
    whole, hollow = build(shape, "cpu"), build(shape, "cpu", hollow=True)

    assert hollow.pages == 1
    assert not hollow.page_table.any()
    for name in ("q", "page_table", "seq_lens", "cu_q"):
        a, b = getattr(whole, name), getattr(hollow, name)
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    assert torch.equal(whole.seq_lens, hollow.seq_lens)


def test_sdpa_takes_sequences_of_unlike_length_one_by_one() -> None:
    material = build(shapes.Shape("x", "decode", (5, 33, 17), 4, 2, 64), "cpu")

    assert len(peer_calls.sdpa(material, 1).calls[0]()) == 3
    assert peer_calls.sdpa(material, 1).error() < 5e-3


def test_every_rotation_reads_the_same_bytes_from_other_pages() -> None:
    shape = shapes.SMOKE[0]
    (subject,) = fitting(shape, CPU, Mode.INT4_PER_TOKEN_HEAD)
    calls = own_calls.prepare(subject, build(shape, "cpu"), CPU, 3).calls

    results = [call().clone() for call in calls]
    tables = [call.args[2] for call in calls]

    assert len(calls) == 3
    assert all(torch.equal(results[0], each) for each in results)
    assert not set(tables[0].flatten().tolist()) & set(tables[1].flatten().tolist())


def test_what_select_answers_is_measured_with_the_parameters_that_it_names() -> None:
    shape = shapes.asked("decode", batch=2, context=64, q_heads=8, kv_heads=2, head_size=128, page=16, ragged=None)

    found = selected(shape, CPU, Mode.INT4_PER_TOKEN_HEAD)

    assert isinstance(found, Subject)
    assert (found.name, found.source) == ("torch-int4-decode@1", "default")
    assert found.config == {"scores": 4194304}
