"""A pipe or a device in place of a file is one line and exit 2, at every command that reads one, and is never waited
for."""

from __future__ import annotations

import os

import pytest

COMMANDS = (
    ("select", "--device", "h200", "--model", "FILE"),
    ("tuned", "diff", "FILE", "FILE"),
    ("tuned", "merge", "--into", "repo", "FILE"),
    ("tune", "--device", "cpu", "--head-size", "64", "--workload", "FILE"),
    ("tune", "--device", "cpu", "--simulate", "FILE"),
    ("tune", "regret", "FILE"),
    ("deselections", "check", "--file", "FILE"),
    ("deselections", "check", "--ids", "FILE"),
    ("ci", "matrix", "--runners", "FILE"),
)


EMPTY = (
    ("'--model'", ("select", "--device", "h200", "--model", "")),
    ("'--model'", ("tune", "--device", "cpu", "--model", "")),
    ("'--simulate'", ("tune", "--simulate", "")),
    ("'RECORDING'", ("tune", "regret", "")),
    ("'--peer'", ("bench", "--peer", "")),
    ("'FIRST'", ("tuned", "diff", "", "x.yaml")),
    ("'FILE...'", ("tuned", "merge", "--into", "x.yaml", "")),
    ("'--folder'", ("toolchain", "install", "xpu", "--folder", "")),
    ("'--python'", ("toolchain", "install", "xpu", "--python", "")),
    ("'SOURCE'", ("deselections", "import", "")),
    ("'--file'", ("deselections", "--file", "")),
    ("'--file'", ("deselections", "check", "--file", "")),
    ("'--ids'", ("deselections", "check", "--ids", "")),
    ("'--file'", ("deselections", "export", "--format", "intel", "--file", "")),
    ("'--root'", ("deselections", "unskip", "--root", "")),
    ("'--ids'", ("deselections", "unskip", "--ids", "")),
    ("'--runners'", ("ci", "matrix", "--runners", "")),
    ("'--file'", ("ci", "matrix", "--file", "")),
    ("'FILE...'", ("ci", "check", "")),
    ("'[FILE]...'", ("ci", "select", "")),
    ("'--changed'", ("ci", "select", "--changed", "")),
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    EMPTY,
    ids=lambda word: " ".join(word).strip() if isinstance(word, tuple) else word.strip("'"),
)
def test_an_empty_path_is_named_and_is_not_the_current_folder(here, name, arguments):
    answer = here(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"kvreg: invalid value for {name}: required a path, found an empty text; ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("folder", [".", "..", "/"])
@pytest.mark.parametrize("words", [(), ("check",), ("unskip",), ("show", "x")], ids=" ".join)
def test_a_folder_in_place_of_a_list_is_one_line_and_exit_2(here, folder, words):
    answer = here("deselections", *words, "--file", folder)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"kvreg: {folder}: required a readable text file, found: Is a directory; check the path\n"


def test_the_root_is_no_folder_for_an_environment(here):
    answer = here("toolchain", "install", "xpu", "--folder", "/")

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        "kvreg: /: required an empty place or an environment, found something else; name another --folder\n"
    )


@pytest.mark.parametrize(
    "words",
    [("tuned", "diff", "x.yaml"), ("deselections", "check", "--file"), ("deselections", "import", "--from", "intel")],
    ids=" ".join,
)
def test_a_file_in_another_encoding_is_to_be_saved_anew(here, tmp_path, words):
    path = tmp_path / "list.txt"
    path.write_bytes("Größe\n".encode("latin-1"))

    answer = here(*(str(path) if word == "x.yaml" else word for word in words), str(path))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"kvreg: {path}: required a readable ")
    assert answer.err.endswith(" file, found: not UTF-8 text; save it as UTF-8\n")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_one_line_and_exit_2(here, tmp_path, arguments, kind):
    path = "/dev/zero"
    if kind == "pipe":
        path = str(tmp_path / "pipe")
        os.mkfifo(path)

    answer = here(*(path if word == "FILE" else word for word in arguments))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert kind in answer.err
