"""Environments of compilers: made whole or not at all, and what `kvreg toolchain` says; real venvs and a real pip."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kvreg.core import environments
from kvreg.core.environments import Recipe
from kvreg.core.errors import ToolchainUnavailable, UsageError
from kvreg.validation import toolchain

RECIPE = Recipe(
    name="toy",
    distribution="toycompiler",
    version="1.5",
    pythons=(sys.version_info[:2],),
    system="Linux",
    machine="x86_64",
    size_mb=1,
    probe="import toycompiler; print(toycompiler.VERSION)",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, body: str) -> None:
    files = {
        "toycompiler.py": body,
        "toycompiler-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: toycompiler\nVersion: 1.5\n",
        "toycompiler-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "toycompiler-1.5.dist-info/RECORD"
    with zipfile.ZipFile(folder / "toycompiler-1.5-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        lines = [
            f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
            f"{len(text)}"
            for name, text in files.items()
        ]
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")


def test_an_installation_that_was_cut_off_is_seen_and_finished_and_a_sound_one_is_kept(
    index: Path, tmp_path: Path
) -> None:
    place = environments.place(tmp_path, "toy")
    half = environments.partial(place) / "bin"
    half.mkdir(parents=True)  # killed before its Python was there
    said: list[str] = []

    # The index has no such distribution: one line that says so, and nothing at the place.
    with pytest.raises(ToolchainUnavailable) as raised:
        toolchain.install(RECIPE, place, say=said.append)
    assert raised.value.exit_code == 6
    assert "No matching distribution found for toycompiler==1.5" in raised.value.message
    assert "\n" not in raised.value.message
    assert "toycompiler" in Path(raised.value.message.split("; ")[1].partition(" has all")[0]).read_text()
    assert not place.exists()
    assert environments.is_unfinished(place)

    wheel(index, "VERSION = '1.5'\n")
    made = toolchain.install(RECIPE, place, say=said.append)

    assert [line.partition(":")[0] for line in said] == ["an installation was cut off", RECIPE.requirement] * 2
    assert not environments.is_unfinished(place)
    assert toolchain.probe(RECIPE, place) == "1.5"  # it answers from where it was moved to
    assert environments.find(place, RECIPE) == made
    assert environments.find(place, replace(RECIPE, version="1.6")) is None
    written = (place / environments.RECORD).stat().st_mtime_ns
    assert toolchain.install(RECIPE, place, say=said.append) == made
    assert (place / environments.RECORD).stat().st_mtime_ns == written
    assert said[-1].endswith("and answers")


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("WARNING: Retrying: NewConnectionError('[Errno 111] Connection refused')\nERROR: none", "no connection"),
        ("The virtual environment was not created: ensurepip is not available", "a Python without them"),
        ("collecting\nERROR: disk full\ndone", "ERROR: disk full"),
    ],
)
def test_the_cause_of_a_failed_command_is_named(tmp_path: Path, printed: str, found: str) -> None:
    command = [sys.executable, "-c", f"print({printed!r}); raise SystemExit(1)"]

    with pytest.raises(ToolchainUnavailable, match=found.replace("(", r"\(")):
        toolchain._run(RECIPE, command, tmp_path / "log")


def test_a_python_without_a_wheel_is_a_usage_error_that_names_those_with_one(tmp_path: Path) -> None:
    recipe = replace(RECIPE, pythons=((2, 6),))

    for python in (None, Path(sys.executable)):
        with pytest.raises(UsageError, match=r"Python 2\.6, for which toycompiler==1\.5 has a wheel.*--python PATH"):
            toolchain.install(recipe, tmp_path / "toy", python)
    assert list(tmp_path.iterdir()) == []


def test_another_system_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ToolchainUnavailable, match="required Plan 9 on x86_64"):
        toolchain.install(replace(RECIPE, system="Plan 9"), tmp_path / "toy")
    assert list(tmp_path.iterdir()) == []


def test_what_lies_at_the_place_is_never_overwritten(index: Path, tmp_path: Path) -> None:
    precious = tmp_path / "toy" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("...")

    with pytest.raises(UsageError, match="an empty place or an environment"):
        toolchain.install(RECIPE, precious.parent)
    assert precious.read_text() == "..."


def test_two_installations_of_one_place_do_not_meet(tmp_path: Path) -> None:
    with toolchain._alone(tmp_path / "toy"), pytest.raises(UsageError, match="another one runs"):
        toolchain.install(RECIPE, tmp_path / "toy")
