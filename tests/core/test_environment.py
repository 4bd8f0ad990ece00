"""A wrong value is an error with the valid list, an unknown name a warning with its replacement; nothing is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg.core import environment, notices
from kvreg.core.errors import BadEnvironment


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())


def test_nothing_set_gives_the_defaults() -> None:
    read = environment.read({"XDG_DATA_HOME": "/data"})

    assert read == environment.Environment(Path("/data/kvreg"), None, None, "warning")


def test_an_empty_value_counts_as_not_set() -> None:
    read = environment.read(dict.fromkeys(environment.VARIABLES, " "))

    assert (read.device, read.backend, read.log) == (None, None, "warning")


def test_every_variable_is_read(tmp_path: Path) -> None:
    read = environment.read(
        {"KVREG_HOME": str(tmp_path), "KVREG_DEVICE": "h200", "KVREG_BACKEND": "triton", "KVREG_LOG": "DEBUG"}
    )

    assert read == environment.Environment(tmp_path, "h200", "triton", "debug")


def test_a_misspelt_backend_is_an_error_with_the_valid_list_and_a_near_match() -> None:
    with pytest.raises(BadEnvironment, match="one of torch, triton, found trition; did you mean triton") as caught:
        environment.read({"KVREG_BACKEND": "trition"})

    assert (caught.value.exit_code, caught.value.candidates) == (2, ("triton",))


def test_a_backend_like_no_other_is_an_error_with_the_valid_list() -> None:
    with pytest.raises(BadEnvironment, match="one of torch, triton, found zzz") as caught:
        environment.read({"KVREG_BACKEND": "zzz"})

    assert caught.value.candidates == ("torch", "triton")


def test_a_wrong_log_level_is_an_error_with_the_valid_list() -> None:
    with pytest.raises(BadEnvironment, match="one of debug, info, warning, error, found verbose"):
        environment.read({"KVREG_LOG": "verbose"})


@pytest.fixture
def unusable(tmp_path: Path) -> dict[str, str]:
    """Paths below which nothing can be kept, by what is wrong with them."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    return {
        "is a file": str(tmp_path / "file"),
        "lies below a file": str(tmp_path / "file" / "home"),
        "is a loop": str(tmp_path / "loop"),
        "is too long": str(tmp_path / ("a" * 300)),
        "has no owner": "~nobody-of-that-name/kvreg",
    }


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("is a file", "found the file "),
        ("lies below a file", ", part of which is a file; "),
        ("is a loop", "(Too many levels of symbolic links)"),
        ("is too long", "(File name too long)"),
        ("has no owner", "found ~nobody-of-that-name/kvreg, and no home folder of that user"),
    ],
)
def test_a_home_that_can_keep_nothing_is_an_error_that_says_why(
    unusable: dict[str, str], wrong: str, found: str
) -> None:
    with pytest.raises(BadEnvironment, match="KVREG_HOME: required a folder") as caught:
        environment.read({"KVREG_HOME": unusable[wrong]})

    assert found in caught.value.message


@pytest.mark.parametrize("name", ["KVREG_HOME", "XDG_DATA_HOME"])
def test_a_relative_home_in_a_folder_that_is_gone_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(BadEnvironment, match=r"KVREG_HOME: required a folder, found rel.*, from a current folder"):
        environment.read({name: "rel"})
    assert environment.home({name: str(tmp_path)}).is_absolute()


def test_a_user_without_a_home_folder_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "~")  # what the lookup leaves where there is neither a variable nor an account

    with pytest.raises(BadEnvironment, match="set it to a folder of yours"):
        environment.read({})


def test_a_home_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    assert environment.read({"KVREG_HOME": str(tmp_path / "new" / "home")}).home == tmp_path / "new" / "home"


def test_every_wrong_variable_is_found_and_not_only_the_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    found = list(
        environment.faults({"KVREG_HOME": str(tmp_path / "file"), "KVREG_BACKEND": "trition", "KVREG_LOG": "loud"})
    )

    assert [fault.message.partition(":")[0] for fault in found] == ["KVREG_HOME", "KVREG_BACKEND", "KVREG_LOG"]


@pytest.mark.parametrize(("name", "replacement"), sorted(environment.REPLACED.items()))
def test_a_replaced_name_warns_and_names_its_replacement(
    name: str, replacement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.read({name: "x"})

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvreg: warning: {name} is not read; use {replacement}")
    assert err.count("\n") == 1


def test_an_unknown_name_warns_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    environment.read({"KVREG_DEVCIE": "h200"})

    assert (
        "KVREG_DEVCIE is no variable of kvreg and is not read; did you mean KVREG_DEVICE?" in capsys.readouterr().err
    )


def test_an_unknown_name_warns_once_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    plain = environment.read({})

    assert environment.read({"KVREG_FAMILY": "torch"}) == environment.read({"KVREG_FAMILY": "torch"}) == plain
    assert capsys.readouterr().err.count("KVREG_FAMILY") == 1


def test_replacements_are_variables_and_no_variable_is_replaced() -> None:
    assert set(environment.REPLACED.values()) <= set(environment.VARIABLES)
    assert not set(environment.REPLACED) & set(environment.VARIABLES)
