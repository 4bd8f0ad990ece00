"""Features have cells of their own, and a trace says which words its cells covered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvreg.core.requests import Op
from kvreg.core.variants import Constraints
from kvreg.validation.cells import FEATURE_CONTEXTS, FEATURES, HEAD_SIZES, PROFILES, Cell, work_list
from kvreg_triton.variants import shared

VARIANTS = shared("cuda")
DECODE = [each for each in VARIANTS if each.op is Op.DECODE]
SERVED = {
    "non_causal",
    "per_sequence_causal",
    "window",
    "softcap",
    "sinks",
    "alibi",
    "prefix_ranges",
    "multi_query_split",
}


def covered(cells: list[Cell]) -> set[str]:
    return {word for cell in cells for word in cell.covered}


@pytest.mark.parametrize("head_size", [64, 96, 128])
@pytest.mark.parametrize("op", [Op.DECODE, Op.PREFILL])
def test_every_served_feature_is_tried_in_every_mode_at_the_commonest_head_sizes(head_size: int, op: Op) -> None:
    for variant in VARIANTS:
        if variant.op is op:
            found = covered(work_list([variant], [head_size], PROFILES["device"]))
            assert found - {"causal"} == SERVED - ({"multi_query_split"} if op is Op.PREFILL else set()), variant.id


def test_a_features_cells_are_of_group_4_with_short_and_long_contexts_and_three_seeds() -> None:
    cells = [cell for cell in work_list(DECODE, [96], PROFILES["device"]) if cell.features != ("causal",)]

    assert {(cell.group, cell.contexts, len(cell.seeds)) for cell in cells} == {(4, FEATURE_CONTEXTS, 3)}
    assert FEATURE_CONTEXTS == (17, 1024)
    assert {cell.window for cell in cells if cell.features == ("window",)} == {5, 100}


def test_what_models_of_a_head_size_ask_for_is_tried_there() -> None:
    at_256 = covered(work_list(DECODE, [256], PROFILES["device"]))

    assert {"window", "softcap", "prefix_ranges"} <= at_256  # Gemma 2 and 3
    assert "alibi" not in at_256


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("form", ["device", "cpu", "interpreter"])
def test_every_feature_can_be_tried_at_each_head_size(head_size: int, form: str) -> None:
    cells = work_list(DECODE[:1], [head_size], PROFILES[form].with_every_feature())

    assert covered(cells) >= SERVED


def test_a_feature_that_a_variant_does_not_declare_is_not_tried() -> None:
    narrow = replace(DECODE[0], constraints=Constraints(features=("causal", "window")))

    cells = work_list([narrow], [96], PROFILES["device"])

    assert {cell.features for cell in cells} == {("causal",), ("window",)}


def test_a_write_has_no_cells_of_features() -> None:
    writes = [each for each in VARIANTS if each.op is Op.WRITE]

    assert {cell.features for cell in work_list(writes, [96], PROFILES["device"].with_every_feature())} == {
        ("causal",)
    }


def test_a_cell_with_features_travels_and_is_told_apart() -> None:
    cells = work_list(DECODE[:1], [96], PROFILES["device"])

    assert [Cell.from_json(cell.to_json()) for cell in cells] == cells
    assert len({str(cell) for cell in cells}) == len(cells)


def test_a_line_of_a_journal_from_before_features_is_causal() -> None:
    (cell, *_) = work_list(DECODE[:1], [96], PROFILES["device"])
    older = {name: value for name, value in cell.to_json().items() if name not in ("features", "window")}

    assert Cell.from_json(older) == cell


def test_each_feature_stands_alone_and_all_that_can_stand_together() -> None:
    assert {(word,) for word in SERVED - {"multi_query_split"}} <= {*FEATURES}
    assert max(FEATURES, key=len) == ("window", "softcap", "sinks", "alibi", "prefix_ranges")
