"""The work list: what is tried, in which order, and that cells travel."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from kvreg.core.layouts import known
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Constraints
from kvreg.validation.cells import (
    GROUPS,
    HEAD_SIZES,
    PROFILES,
    SEEDS_IN_LONG,
    WHOLE_HEADS,
    WHOLE_MODES,
    Cell,
    kv_heads_of,
    many_seeds_only,
    work_list,
)
from kvreg_triton.variants import shared

VARIANTS = shared("cuda")


def by_op(op: Op) -> list:
    return [each for each in VARIANTS if each.op is op]


def usual(cells) -> list[Cell]:
    return [c for c in cells if (c.dtype, c.page, c.features) == ("bf16", 16, ("causal",))]


def test_the_device_form_covers_every_group_kind_and_layout_of_the_whole_modes_and_heads() -> None:
    cells = usual(work_list(VARIANTS, HEAD_SIZES, PROFILES["device"]))

    seen = {(c.mode, c.head_size, c.group, c.kind, c.layout) for c in cells}
    assert {"none", "int4_per_token_head"} <= set(WHOLE_MODES)
    assert {64, 80, 96, 112, 128, 160, 192, 256} <= set(WHOLE_HEADS) <= set(HEAD_SIZES)
    for mode in WHOLE_MODES:
        for head_size in WHOLE_HEADS:
            for layout in known(Mode(mode)):
                assert (mode, head_size, 1, "write", layout) in seen
                for group in GROUPS:
                    for kind in ("decode", "prefill", "mixed"):
                        assert (mode, head_size, group, kind, layout) in seen


def test_every_mode_and_head_size_has_every_kind_and_every_layout_somewhere() -> None:
    cells = usual(work_list(VARIANTS, HEAD_SIZES, PROFILES["device"]))

    for mode in {variant.mode for variant in VARIANTS}:
        for head_size in HEAD_SIZES:
            own = [c for c in cells if (c.mode, c.head_size) == (mode, head_size)]
            assert {c.kind for c in own} == {"write", "decode", "prefill", "mixed"}
            for op in Op:
                assert {c.layout for c in own if c.op == op} == set(known(mode))
            assert {1, 4} <= {c.group for c in own if c.kind == "decode"}


def test_a_decode_variant_is_tried_on_mixed_batches_and_so_is_a_prefill_variant() -> None:
    cells = work_list(VARIANTS, (128,), PROFILES["device"])

    kinds = {(cell.op, cell.kind) for cell in cells}
    assert kinds == {
        ("write", "write"),
        ("decode", "decode"),
        ("decode", "mixed"),
        ("prefill", "prefill"),
        ("prefill", "mixed"),
    }


def test_what_select_accepts_beside_the_grid_is_tried_too() -> None:
    cells = work_list(by_op(Op.DECODE), (96,), PROFILES["device"])

    assert {"bf16", "fp16"} == {cell.dtype for cell in cells}
    assert 528 in {cell.page for cell in cells}
    assert {24, 71} <= {cell.group for cell in cells}


def test_the_long_form_adds_200_sequences_of_one_batch_for_groups_1_and_4() -> None:
    long = many_seeds_only(work_list(VARIANTS, (64,), PROFILES["device-long"]))

    assert {(cell.op, cell.group) for cell in long} == {
        ("decode", 1),
        ("decode", 4),
        ("prefill", 1),
        ("prefill", 4),
        ("write", 1),
    }
    assert all(cell.sequences == SEEDS_IN_LONG == len(set(cell.seeds)) for cell in long)
    assert not many_seeds_only(work_list(VARIANTS, (64,), PROFILES["device"]))


@pytest.mark.parametrize("head_size", [24, 100, 520])
def test_a_head_size_outside_the_constraints_gives_no_cell(head_size: int) -> None:
    assert work_list(VARIANTS, (head_size,), PROFILES["device"]) == []


def test_constraints_bound_layouts_groups_dtypes_and_pages() -> None:
    narrow = Constraints(layouts=("planar.1",), group_max=4, dtypes=("bf16",), page_max=64)
    variant = replace(next(each for each in by_op(Op.DECODE) if each.mode in WHOLE_MODES), constraints=narrow)

    cells = work_list([variant], (96,), PROFILES["device"])

    assert {cell.layout for cell in cells} == {"planar.1"}
    assert {cell.group for cell in cells} == {1, 4}
    assert {cell.dtype for cell in cells} == {"bf16"}
    assert {cell.page for cell in cells} == {16}


def test_cells_with_the_same_rows_stand_together() -> None:
    cells = [cell for cell in work_list(VARIANTS, (64, 96), PROFILES["device"]) if cell.kind != "write"]

    order = [(cell.mode, cell.rows) for cell in cells]
    changes = sum(1 for before, after in itertools.pairwise(order) if before != after)
    assert changes == len(set(order)) - 1


def test_rows_are_shared_over_layouts_and_ops_and_over_nothing_else() -> None:
    cell = next(c for c in work_list(by_op(Op.DECODE), (64,), PROFILES["device"]) if c.kind == "mixed")

    assert replace(cell, layout="inline.1", variant="other@1", op="prefill").rows == cell.rows
    for change in (
        {"group": 8},
        {"kv_heads": 1},
        {"kind": "decode"},
        {"seeds": (5,)},
        {"dtype": "fp16"},
        {"page": 32},
    ):
        assert replace(cell, **change).rows != cell.rows


def test_a_cell_travels_as_json() -> None:
    for cell in work_list(VARIANTS, (80,), PROFILES["device-long"]):
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
        assert isinstance(cell.mode, str)
        assert Mode(cell.mode)


def test_wide_groups_of_large_heads_keep_one_kv_head() -> None:
    assert kv_heads_of(8, 256) == kv_heads_of(71, 64) == 1
    assert kv_heads_of(8, 128) == kv_heads_of(4, 256) == 2
