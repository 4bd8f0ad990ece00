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


def test_a_home_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(BadEnvironment, match="KVREG_HOME: required a folder"):
        environment.read({"KVREG_HOME": str(file)})


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
