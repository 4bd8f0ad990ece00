"""`kvreg coverage`: a table of at most seven columns, one document, one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_json_has_a_cell_for_each_device_mode_and_head_size(kvreg: Run) -> None:
    answer = kvreg("coverage", "--platform", "cpu", "--head-size", "64", "--head-size", "96", "--json")

    assert (answer.code, answer.err) == (0, "")
    document = answer.document
    assert (document["schema"], document["head_sizes"], len(document["modes"])) == (1, [64, 96], 5)
    assert len(document["cells"]) == 10
    assert sum(document["counts"].values()) == 10
    assert set(document["cells"][0]) == {
        "device", "platform", "arch", "mode", "head_size", "status", "evidence_of", "code", "reason",
    }  # fmt: skip


def test_the_table_names_each_device_once_and_ends_with_the_command_that_explains(kvreg: Run) -> None:
    answer = kvreg("coverage", "--platform", "xpu", "--mode", "none", "--head-size", "100")

    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split() == ["devices", "arch", "none"]
    assert "b580 b50 b60 b65 b70 arch:bmg" in answer.out
    assert all(line.endswith("refused: head_size") for line in lines[1:6])
    assert lines[-1] == "kvreg select --device max1550 --mode none --head-size 100 --explain"


def test_an_unknown_platform_is_a_usage_error_with_the_nearest(kvreg: Run) -> None:
    answer = kvreg("coverage", "--platform", "rocn", "--json")

    assert answer.code == 2
    assert answer.document["error"]["candidates"] == ["cuda", "rocm", "xpu", "cpu"]
    assert "did you mean rocm?" in answer.document["error"]["message"]


def test_a_page_that_cannot_be_written_is_one_line_and_leaves_nothing(kvreg: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    good = kvreg("coverage", "--platform", "cpu", "--html", str(page))
    bad = kvreg("coverage", "--platform", "cpu", "--html", str(tmp_path / "missing" / "page.html"))

    assert (good.code, good.out) == (0, f"wrote {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert (bad.code, bad.out) == (2, "")
    assert bad.err.count("\n") == 1
    assert not (tmp_path / "missing").exists()
