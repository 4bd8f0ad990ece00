"""A folder of the overlay that cannot be listed is named, and never taken for an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg.cli.main import status

SELECT = ("select", "--device", "cpu", "--mode", "none", "--head-size", "128")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose two folders are files, which not even root can list."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("evidence", "tuned"):
        (home / name).write_text("")
    monkeypatch.setenv("KVREG_HOME", str(home))
    return home


def test_select_and_a_list_warn_of_what_they_cannot_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvreg.core import notices

    for words, names in (
        (SELECT, ("evidence", "tuned")),
        (("tuned", "list", "--device", "cpu"), ("tuned",)),
    ):
        notices._said.clear()  # each is a process of its own
        assert status(words) == 0
        err = capsys.readouterr().err
        for name in names:
            assert f"warning: {home / name}: required a folder that can be listed, found Not a directory" in err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("tuned", "check"), 4, "unreadable: {}/tuned: "),
        (("evidence", "check", "--device", "b580"), 4, "unreadable: {}/evidence: "),
        (("doctor",), 0, "missing: {}/tuned: "),
    ],
    ids=["tuned", "evidence", "doctor"],
)
def test_a_check_finds_and_doctor_names_the_folder(
    home: Path, words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(words) == code
    assert told.format(home) in capsys.readouterr().out
