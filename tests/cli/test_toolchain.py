"""`kvreg toolchain`: what is there, what is missing, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def test_check_names_every_arch_of_the_devices_and_what_is_missing(kvreg: Run) -> None:
    answer = kvreg("toolchain", "check", "--json", environment={"PATH": "/nowhere"})

    assert (answer.code, answer.err) == (0, "")  # a report, whatever is missing
    targets = {each["target"]: each for each in answer.document["targets"]}
    assert {"sm_80", "sm_90", "sm_120", "gfx90a", "gfx942", "gfx1201", "bmg", "pvc", "ocloc"} <= set(targets)
    assert targets["sm_90"]["state"] == "ok"
    assert targets["bmg"]["state"] == "missing"
    assert targets["bmg"]["remedy"] == "kvreg toolchain install xpu"
    assert targets["ocloc"]["problem"] == "no ocloc on PATH"


def test_check_of_a_named_target_that_is_missing_is_a_finding(kvreg: Run, home: Path) -> None:
    (home / "toolchains" / "xpu.partial").mkdir(parents=True)

    answer = kvreg("toolchain", "check", "bmg", "sm_90")

    assert answer.code == 4
    rows = [line.split()[0] for line in answer.out.splitlines()[1:3]]
    assert rows == ["sm_90", "bmg"]
    assert answer.out.splitlines()[-1] == "bmg: its installation was cut off; kvreg toolchain install xpu"


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(("install", "xpv"), "did you mean xpu?"), (("check", "gfx943"), "did you mean gfx942?")],
)
def test_a_misspelt_word_is_a_usage_error_with_the_nearest(
    kvreg: Run, arguments: tuple[str, ...], nearest: str
) -> None:
    answer = kvreg("toolchain", *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert nearest in answer.err
    assert answer.err.count("\n") == 1


def test_check_compile_names_the_target_that_fails_with_the_compilers_words(kvreg: Run) -> None:
    answer = kvreg(
        "toolchain", "check", "sm_90", "--compile", "--json", environment={"PTXAS_OPTIONS": "--no-such-option"}
    )

    assert answer.code == 4
    (one,) = answer.document["targets"]
    assert one["state"] == "fails"
    assert "Unknown option" in one["problem"]
