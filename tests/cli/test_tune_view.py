"""What a tuning run shows: the board that both views draw, its lines when piped, and the table on a terminal."""

from __future__ import annotations

import io

import pytest

from kvreg.cli.tune_view import Board, TuneLines, TuneLive
from kvreg.core.buckets import Bucket
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.subjects import Subject

SUBJECT = Subject("h200", "triton-int4-decode@1", "decode", "int4_per_token_head", 128, 4, 8)
BUCKET = Bucket(32, 8192)
DEFAULT = Trial({"tile": 32, "num_warps": 1}, "b32-c8192", "ok", us=100.0)
FASTER = Trial({"tile": 64, "num_warps": 1}, "b32-c8192", "ok", us=80.0)
WRONG = Trial({"tile": 16, "num_warps": 1}, "b32-c8192", "wrong", "rel_error: required at most 0.005, found 1")


def board() -> Board:
    made = Board(lambda subject, bucket: 65.0, budget_s=600.0)
    made.begin(SUBJECT, [BUCKET], 96, 12)
    return made


def test_a_row_says_how_the_best_stands_against_the_default_and_the_card() -> None:
    shown = board()
    for trial in (DEFAULT, FASTER, WRONG):
        shown.add(trial, known=False)

    assert shown.row(BUCKET) == ("b32-c8192", "100 us", "80 us", "+20.0%", "81%", "tile=64")
    assert shown.outcomes == "2 ok, 1 wrong result, 12 pruned"
    assert len(shown.tried) == 3
    assert shown.left.endswith("s left")


def test_a_wrong_config_is_never_the_best_however_fast() -> None:
    shown = board()
    shown.add(DEFAULT, known=False)

    assert not shown.add(WRONG, known=False)
    assert shown.row(BUCKET)[2] == "100 us"


def test_piped_lines_name_what_failed_and_escape_what_a_terminal_would_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = TuneLines(board())
    hostile = Trial({"tile": 128, "num_warps": 1}, "b32-c8192", "compile", "ptxas \x1b[31mfatal\nline 2")

    with lines:
        lines.begin(SUBJECT, [BUCKET], 96, 12)
        for trial in (DEFAULT, FASTER, WRONG, hostile):
            lines.trial(trial, known=False)
        lines.race(BUCKET, 3)

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "triton-int4-decode@1 d128 group 4: 97 configs in b32-c8192; 12 pruned (600 s left)",
        "b32-c8192: 80 us: tile=64 num_warps=1",
        "b32-c8192: wrong result: tile=16 num_warps=1: rel_error: required at most 0.005, found 1",
        "b32-c8192: compile error: tile=128 num_warps=1: ptxas \\x1b[31mfatal line 2",
        "b32-c8192: 2 finalists against the default (600 s left)",
    ]


def test_the_terminal_s_board_shows_progress_best_and_outcomes() -> None:
    from rich.console import Console

    live = TuneLive(board())
    for trial in (DEFAULT, FASTER):
        live.board.add(trial, known=False)
    live.race(BUCKET, 3)
    page = io.StringIO()

    Console(file=page, width=120).print(live._draw())

    text = page.getvalue()
    assert "2 of 97 configs" in text
    assert "2 finalists of b32-c8192 race the default" in text
    for word in ("b32-c8192", "100 us", "80 us", "+20.0%", "81%", "tile=64", "2 ok, 12 pruned"):
        assert word in text
