"""What `kvreg validate` and `kvreg tune` print to commit: folders of traces, tuned files, a text to paste."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kvreg.cli import contribution


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def test_traces_are_committed_with_their_devices_folder_and_tuned_files_by_themselves(checkout: Path) -> None:
    evidence = checkout / "backends/kvreg_xpu/evidence/b580"
    written = [
        evidence / "none/d96-write-triton-none-write.yaml",
        evidence / "int4_per_token_head/d96-write-triton-int4-write.yaml",
        checkout / "backends/kvreg_xpu/tuned/b580.yaml",
    ]

    request = contribution.pull_request(written, "Evidence from b580", ["a card"])

    assert request is not None
    assert request.root == checkout
    assert request.files == ("backends/kvreg_xpu/evidence/b580", "backends/kvreg_xpu/tuned/b580.yaml")


def test_what_was_written_outside_of_a_checkout_makes_no_pull_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = contribution.pull_request([tmp_path / "evidence/b580/none/d96-write-x.yaml"], "Evidence", [])

    assert request is None
    contribution.show(request)
    assert "--write repo" in capsys.readouterr().out


def test_the_printed_commands_can_be_pasted(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = checkout / "back ends" / "evidence" / "b580" / "none" / "d96-write-x.yaml"
    request = contribution.pull_request([odd], "Evidence from b580: it's 1 trace", ["One.", "Two."])

    contribution.show(request)

    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("  git")]
    assert commands[0] == ["git", "add", "back ends/evidence/b580", "docs", "README.md"]
    assert commands[1] == ["git", "commit", "-m", "Evidence from b580: it's 1 trace"]
    assert lines[-4:] == ["  Evidence from b580: it's 1 trace", "", "  One.", "  Two."]
