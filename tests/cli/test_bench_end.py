"""How `kvreg bench` ends: its exit code by what became of kvreg's rows, and the line about memory."""

from __future__ import annotations

import pytest
import torch

from kvreg.bench.host import HostRow
from kvreg.cli import bench_end
from kvreg.core import notices
from kvreg.core.modes import Mode

INT4 = Mode.INT4_PER_TOKEN_HEAD
BEYOND = 1 << 60
"""Bytes that no host has."""


def no_room() -> str:
    """Return what torch says of memory that is not there, as a row has it."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(BEYOND, dtype=torch.uint8)
    return f"RuntimeError: {caught.value}".splitlines()[0][:200]


def row(mode: Mode, status: str, detail: str = "", maker: str = "kvreg") -> HostRow:
    return HostRow("decode", "decode", maker, mode, "a kernel", status, detail)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ((row(INT4, "ok"), row(Mode.NONE, "error", "ValueError: odd")), 0),
        ((row(INT4, "error", "ValueError: odd"), row(Mode.NONE, "ok"), row(INT4, "ok", maker="vllm")), 3),
        ((row(INT4, "crash", "SIGSEGV"), row(INT4, "wrong", "required e at most 0.01")), 5),
        ((row(INT4, "timeout"), row(INT4, "refused", "no trace")), 3),
        ((row(INT4, "ok"), row(INT4, "refused", "no trace")), 0),
    ],
    ids=(
        "one fits",
        "bf16 and a peer are no answer",
        "wrong outweighs",
        "all that was tried",
        "refused was not tried",
    ),
)
def test_a_bench_ends_by_the_rows_of_the_modes_asked_for(rows: tuple[HostRow, ...], code: int) -> None:
    assert bench_end.exit_code(rows, [INT4]) == code


@pytest.mark.parametrize("smaller", [bench_end.SMALLER, bench_end.SMALLER_STEP])
def test_where_memory_was_the_cause_the_line_names_what_to_make_smaller(
    smaller: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(INT4, "error", no_room())]

    assert bench_end.exit_code(rows, [INT4], smaller=smaller) == 3

    assert capsys.readouterr().err == (
        "kvreg: warning: bench: required a row of kvreg that was measured, found none of 1"
        f" (memory was not enough for 1); {smaller}\n"
    )


@pytest.mark.parametrize(
    "detail",
    ["OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "MemoryError: required 42 GiB for weights"],
)
def test_a_row_without_room_beside_measured_ones_is_told_and_no_failure(
    detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_end.exit_code([row(INT4, "ok"), row(INT4, "error", detail)], [INT4]) == 0

    assert f"memory was not enough for 1 of 2 rows of kvreg; {bench_end.SMALLER}" in capsys.readouterr().err


def test_another_cause_gets_no_advice_about_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_end.exit_code([row(INT4, "error", "ValueError: odd")], [INT4]) == 3

    said = capsys.readouterr().err
    assert "each row says why" in said
    assert "smaller" not in said
