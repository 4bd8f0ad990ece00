"""Every planted fault is red, by the check that is meant to see it; the committed table says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvreg.core.modes import Mode
from kvreg.gate import mutants
from kvreg.gate.faults import FEATURE, READER, WRITER, features_of
from kvreg.testing import KINDS, Kind
from kvreg.testing.features import words_of

MEANT = {
    "q_unrotated": "rel_error",
    "o_rotated": "rel_error",
    "read_nibbles": "rel_error",
    "read_zero": "rel_error",
    "read_stale_scale": "rel_error",
    "read_k_scale": "rel_error",
    "read_head": "rel_error",
    "split_dropped": "rel_error",
    "tile_skipped": "rel_error",
    "mask_late": "finite",
    "causal_late": "rel_error",
    "scale_undivided": "rel_error",
    "undo_head": "rel_error",
    "output_scaled": "rel_error",
    "output_zeros": "cosine",
    "output_mean": "zero",
    "output_shuffled": "cosine",
    "row_unwritten": "poison",
    "empty_untouched": "poison",
    "lse_base2": "lse",
    "read_unsigned": "rel_error",
    "read_tensor_scale": "rel_error",
    "read_unscaled": "rel_error",
    "read_fn": "rel_error",
    "causal_forced": "rel_error",
    "causal_ignored": "rel_error",
    "causal_of_next": "rel_error",
    "draft_at_end": "rel_error",
    "window_dropped": "rel_error",
    "window_late": "rel_error",
    "window_early": "rel_error",
    "window_ahead": "rel_error",
    "softcap_dropped": "rel_error",
    "softcap_unscaled": "rel_error",
    "sink_dropped": "rel_error",
    "sink_repeated": "rel_error",
    "sink_base2": "rel_error",
    "sink_of_group": "rel_error",
    "sink_not_in_lse": "lse",
    "sink_of_nothing": "lse",
    "alibi_dropped": "rel_error",
    "alibi_sign": "rel_error",
    "alibi_of_group": "rel_error",
    "alibi_origin": "lse",
    "alibi_capped": "rel_error",
    "range_dropped": "rel_error",
    "range_end_late": "rel_error",
    "range_begin_late": "rel_error",
    "range_of_rows": "rel_error",
    "range_in_window": "rel_error",
    "k_unrotated": "step",
    "v_unrotated": "step",
    "kv_unrotated": "step",
    "write_nibbles": "step",
    "write_zero": "zero_point",
    "write_shifted_codes": "zero_point",
    "write_stale_scale": "scale",
    "write_k_scale": "scale",
    "write_range": "step",
    "write_lanes": "scale",
    "write_neighbour": "untouched",
    "write_padding": "untouched",
    "write_signed": "scale",
    "write_128": "scale",
    "write_truncated": "step",
    "write_unclamped": "step",
    "write_tensor_scale": "code",
    "write_unscaled": "code",
    "write_448": "scale",
    "write_fn": "code",
}


def test_the_right_implementation_is_green_in_every_check() -> None:
    right = mutants.verdict(None)

    feature_sets = len({features_of(fault) for fault in FEATURE})
    assert feature_sets == 11
    assert right.sequences == (len(Mode) + feature_sets) * (3 * 4 * 4 + 3)
    assert not right.attention
    assert not right.write


def test_every_fault_has_its_check() -> None:
    assert set(MEANT) == set(READER) | set(WRITER) | set(FEATURE)


TABLE = Path(__file__).parents[2] / "docs" / "gate-mutants.md"
TOGETHER = ("window", "softcap", "sinks", "alibi", "prefix_ranges", "per_sequence_causal", "multi_query_split")


@pytest.mark.parametrize("mode", list(Mode), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_right_implementation_is_green_with_all_features_together_in_every_mode(kind: Kind, mode: Mode) -> None:
    report = mutants.judge_read(None, kind, mode, words_of(TOGETHER))

    assert report.ok, report.failures


@pytest.mark.checkout
@pytest.mark.parametrize("fault", sorted(MEANT))
def test_a_planted_fault_is_red_by_the_check_that_is_meant_for_it_and_as_the_table_says(fault: str) -> None:
    found = mutants.verdict(fault)

    assert (found.write if fault in WRITER else found.attention)[MEANT[fault]]
    line = f"| {' | '.join(mutants.row(fault))} |"
    assert line in TABLE.read_text().splitlines(), "run: python -m kvreg.gate.mutants --output docs/gate-mutants.md"


@pytest.mark.parametrize("fault", ["read_nibbles", "read_zero", "o_rotated", "undo_head", "output_scaled"])
def test_a_fault_of_values_is_red_in_every_sequence_that_has_any(fault: str) -> None:
    found = mutants.verdict(fault)

    empty = 3 * found.sequences // 51
    assert found.attention["rel_error"] == found.sequences - empty


@pytest.mark.parametrize("fault", ["k_unrotated", "v_unrotated", "kv_unrotated", "write_nibbles", "write_zero"])
def test_rows_stored_wrongly_but_readable_are_seen_by_the_write_check_alone(fault: str) -> None:
    found = mutants.verdict(fault)

    assert found.write["step"]
    assert not found.attention


@pytest.mark.long
@pytest.mark.checkout
def test_the_committed_table_is_what_the_command_makes(tmp_path: Path) -> None:
    """As the test of every fault, but for the words around its lines: it takes a minute once more."""
    made = tmp_path / "gate-mutants.md"

    assert mutants.main(["--output", str(made)]) == 0

    assert made.read_text() == TABLE.read_text()
    assert list(tmp_path.iterdir()) == [made]


def test_the_command_exists_and_says_how_it_is_used() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kvreg.gate.mutants", "--help"], capture_output=True, text=True, timeout=120, check=True
    )

    assert "--output" in run.stdout
