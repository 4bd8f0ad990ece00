"""Files that the user names for an answer: links stay, and what is no regular file is refused before any work."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
PAGE = ("coverage", "--platform", "cpu", "--mode", "none", "--head-size", "64", "--html")


def test_a_link_stays_and_its_target_is_written(kvreg: Run, tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)

    answer = kvreg(*PAGE, str(link))

    assert (answer.code, answer.err) == (0, "")
    assert link.is_symlink()
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_pipe_stays_a_pipe_and_is_refused(kvreg: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    answer = kvreg(*PAGE, str(pipe))

    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "required a regular file or a new name, found a pipe" in answer.err
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    "words",
    [
        PAGE,
        ("deselections", "export", "--format", "arguments", "--platform", "cpu", "--output"),
        ("deselections", "import", "no-such-list.yaml", "--output"),
        ("deselections", "import", "no-such-list.yaml", "--report"),
        ("tune", "--record"),
        ("tune", "report", "--plot"),
        ("tuned", "merge", "no-such-file.yaml", "--into"),
        ("validate", "--device", "no such card", "--journal"),
    ],
    ids=lambda words: " ".join(words[:2] + words[-1:]),
)
def test_every_output_option_refuses_an_empty_name_a_folder_and_standard_outputs_name(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from kvreg.cli.main import status

    for named, found in (
        ("", "an empty name"),
        (str(tmp_path), "a folder"),
        ("/dev/stdout", "a name of the system's"),
    ):
        assert status([*words, named]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"{words[-1]}" in err
        assert f"found {found}; name" in err


def test_a_folder_that_is_not_there_is_said_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from kvreg.cli.main import status

    for words in (("tune", "--record"), ("validate", "--journal")):
        command, option = words
        assert status([command, "--device", "no such card", option, str(tmp_path / "none" / "kept")]) == 2
        assert "required a file in a folder that is there" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("named", ["/dev/full", "/dev/zero", "/dev/stdout"])
def test_a_journal_is_no_device(capsys: pytest.CaptureFixture[str], named: str) -> None:
    from kvreg.cli.main import status

    assert status(["validate", "--device", "cpu", "--journal", named]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"--journal {named}: required a regular file or a new name" in err
