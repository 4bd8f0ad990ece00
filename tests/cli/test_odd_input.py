"""Input that nobody means ends with 2 or a finding in one line, and never with a defect's 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvreg.cli.main import status

WORKFLOW = """\
on: [push]
permissions: 2026-01-01
jobs:
  odd:
    runs-on: [foo, {x: 1}]
    needs: [{a: b}]
    outputs: [a]
    steps: [run, 7, {run: [1], uses: 2}, {uses: {a: b}}]
  none: {runs-on: {group: g}, steps: 3}
"""
PIPELINE = """\
agents: [q]
steps: [{command: x, agents: {queue: [a]}, key: {a: b}, depends_on: [{c: d}]}, 7, {commands: [x], agents: y}]
"""


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with runners, and a folder below it as the current one."""
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "home"))
    below = tmp_path / "checkout" / "src"
    below.mkdir(parents=True)
    (below.parent / ".git").mkdir()
    (below.parent / "ci").mkdir()
    runner = {"name": "host", "device": "cpu", "labels": ["foo"], "queue": "q", "suite": "all", "stacks": ["here"]}
    fleet = {"schema": 1, "sources": ["."], "paths": {"every_job": [], "no_job": []}, "stacks": {"here": {}},
             "suites": {"all": {"tests": ["a.py"]}}, "runners": [runner]}  # fmt: skip
    file = below.parent / "ci" / "runners.yaml"
    file.write_text(yaml.safe_dump(fleet))
    monkeypatch.chdir(below)
    return file


@pytest.mark.parametrize("text", [WORKFLOW, PIPELINE], ids=["workflow", "pipeline"])
def test_odd_values_of_a_pipeline_are_findings_of_the_checkout_that_one_stands_in(
    runners: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.yaml").write_text(text)

    assert status(["ci", "check", "odd.yaml"]) == 4
    out, err = capsys.readouterr()
    assert err == ""
    assert "that runners.yaml" in out


def test_a_document_that_holds_itself_is_one_line(runners: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.yaml").write_text("jobs: {}\nenv: &a [*a]\n")

    assert status(["ci", "check", "odd.yaml"]) == 2
    assert "required a finite document" in capsys.readouterr().err


def test_a_folder_of_no_checkout_says_where_it_looked(
    runners: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvreg.ci.matrix.runners.CHECKOUT", runners.with_name("none"))
    runners.unlink()

    assert status(["ci", "matrix"]) == 2
    assert f"no {runners.parents[1] / 'src' / 'ci' / 'runners.yaml'} or {runners}" in capsys.readouterr().err


def test_brackets_without_end_are_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)

    assert status(["deselections", "import", str(tmp_path / "deep.json")]) == 2
    assert "required JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("deselections", "unskip", "--pytest-args", '"unterminated'), "No closing quotation"),
        (("deselections", "unskip", "--timeout-s", "nan"), "nan is no finite number"),
        (("deselections", "unskip", "--only", ""), "--only '': required the id of an entry"),
        (("tune", "--trial-timeout", "nan"), "nan is no finite number"),
        (("validate", "--cell-timeout", "inf"), "inf is no finite number"),
        (("select", "--weights-gb", "nan"), "nan is no finite number"),
    ],
    ids=["quotes", "limit", "entry", "trial", "cell", "weights"],
)
def test_odd_words_are_one_line_and_exit_2(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text("schema: 1\nexpectations: []\n")
    files = ("--file", str(listed)) if words[0] == "deselections" else ()

    assert status([*words, *files]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize("words", [("--version",), ("devices", "--json")], ids=" ".join)
def test_a_closed_standard_output_ends_with_2(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", "from kvreg.cli.main import run; run()", *words],
        env={**os.environ, "KVREG_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("kvreg: standard output: required to take the answer")
