"""The table of shapes, and shapes that flags make."""

from __future__ import annotations

import pytest

from kvreg.bench import shapes
from kvreg.bench.measuring import moved_bytes
from kvreg.core.errors import UsageError
from kvreg.core.modes import Mode

FLAGS = {"batch": 32, "context": 8192, "q_heads": 32, "kv_heads": 8, "head_size": 128, "page": 16, "ragged": None}


def test_the_card_s_table_has_twelve_decodes_five_writes_and_names_each_once() -> None:
    assert (len(shapes.DECODE), len(shapes.WRITE)) == (12, 5)
    assert {shape.work for shape in shapes.OTHERS} == {"decode", "verify", "prefill"}
    names = [shape.name for shape in (*shapes.CARD, *shapes.HOST)]
    assert len(set(names)) == len(names)


def test_the_equal_batch_beside_the_ragged_one_holds_as_many_bytes() -> None:
    ragged, equal = shapes.OTHERS[-2:]

    assert (min(ragged.contexts), max(ragged.contexts), len(ragged.contexts)) == (17, 131072, 64)
    assert len(set(equal.contexts)) == 1
    for mode in Mode:
        assert moved_bytes(equal, mode) == pytest.approx(moved_bytes(ragged, mode), rel=1e-4)


def test_a_ragged_batch_grows_by_equal_factors() -> None:
    contexts = shapes.spread(10, 10_000, 4)

    assert contexts == (10, 100, 1000, 10_000)


def test_what_a_call_must_move_is_the_cache_and_of_a_write_its_rows_too() -> None:
    decode, write = shapes.asked("decode", **FLAGS), shapes.asked("write", **FLAGS)

    assert moved_bytes(decode, Mode.NONE) == 32 * 8192 * 8 * 4 * 128
    assert moved_bytes(decode, Mode.INT4_PER_TOKEN_HEAD) == 32 * 8192 * 8 * 2 * (64 + 4)
    assert moved_bytes(write, Mode.INT4_PER_TOKEN_HEAD) == 32 * 8192 * 8 * (2 * (64 + 4) + 4 * 128)
    assert moved_bytes(shapes.asked("prefill", **FLAGS), Mode.NONE) is None


def test_drafts_are_no_longer_than_their_sequence() -> None:
    shape = shapes.Shape("x", "verify", (64, 3), 4, 2, 64)

    assert shape.queries == (4, 3)
    assert "multi_query_split" in shape.features


def test_a_chunk_is_the_end_of_each_context_and_prefill_s_alone() -> None:
    chunked = shapes.asked("prefill", **{**FLAGS, "batch": 2, "context": 100}, chunk=64)

    assert chunked.queries == (64, 64)
    assert chunked.size == "last 64 of 2 x 100"
    assert shapes.asked("decode", **FLAGS, chunk=64) == shapes.asked("decode", **FLAGS)
    assert shapes.Shape("x", "prefill", (64, 3), 4, 2, 64, chunk=17).queries == (17, 3)


def test_a_shape_survives_the_way_to_a_worker() -> None:
    for shape in shapes.CARD:
        assert shapes.Shape.from_json(shape.to_json()) == shape


@pytest.mark.parametrize(
    "text", ["17", "17:131072", "100:17x4", "0:17x4", "17:131072x0", "17:64x99999999999", "1:9999999999x2"]
)
def test_a_ragged_batch_of_no_meaning_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="17:131072x64"):
        shapes.asked("decode", **{**FLAGS, "ragged": text})


def test_query_heads_that_kv_heads_do_not_divide_are_an_error() -> None:
    with pytest.raises(UsageError, match="multiple of the 8 KV heads"):
        shapes.asked("decode", **{**FLAGS, "q_heads": 30})
