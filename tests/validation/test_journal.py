"""The journal: what was finished is found again, whatever cut the run off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvreg.core.errors import BadFile, UsageError
from kvreg.validation.journal import Journal, key_of


def test_lines_are_found_again_by_their_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    with Journal(path) as journal:
        journal.append("a", {"status": "ok", "rows": [1, 2]})
        journal.append("b", {"status": "wrong"})

    with Journal(path) as again:
        assert again.get("a") == {"schema": 1, "key": "a", "status": "ok", "rows": [1, 2]}
        assert again.get("b") == {"schema": 1, "key": "b", "status": "wrong"}
        assert again.get("c") is None
        assert len(again) == 2


def test_the_newest_line_of_a_key_counts(tmp_path: Path) -> None:
    with Journal(tmp_path / "run.jsonl") as journal:
        journal.append("a", {"status": "crash"})
        journal.append("a", {"status": "ok"})
    with Journal(tmp_path / "run.jsonl") as again:
        assert again.get("a")["status"] == "ok"


def test_a_line_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    with Journal(tmp_path / "run.jsonl") as journal:
        journal.append("a", {"status": "ok"})
        assert json.loads((tmp_path / "run.jsonl").read_bytes())["key"] == "a"


@pytest.mark.parametrize(
    "torn", [b'{"schema":1,"key":"b","sta', b'{"schema":1', b"\x00\x00\x00", b'{"schema":1,"key":"b"}']
)
def test_a_torn_last_line_has_not_happened_and_the_next_one_is_whole(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append("a", {"status": "ok"})
    path.write_bytes(path.read_bytes() + torn)

    with Journal(path) as journal:
        assert journal.get("a")["status"] == "ok"
        journal.append("c", {"status": "ok"})

    lines = path.read_bytes().splitlines()
    assert all(json.loads(line) for line in lines)
    with Journal(path) as again:
        assert again.get("c")["status"] == "ok"


@pytest.mark.parametrize("broken", [b"not json\n", b'{"schema":2,"key":"x"}\n', b"[]\n", b'{"schema":1}\n'])
def test_a_broken_line_in_the_middle_is_an_error_that_names_file_and_line(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"schema":1,"key":"a"}\n' + broken + b'{"schema":1,"key":"b"}\n')

    with pytest.raises(BadFile, match=r"run\.jsonl, line 2: required a JSON line"):
        Journal(path)


def test_a_second_run_on_the_same_journal_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    holder = (
        "import sys, pathlib\nfrom kvreg.validation.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="one validation at a time"):
            Journal(path)
        other.kill()
    Journal(path).close()


def test_the_key_covers_every_field_and_not_their_order() -> None:
    identity = {"device": "h200", "torch": "2.11.0", "cell": {"group": 4}}

    assert key_of(identity) == key_of(dict(reversed(identity.items())))
    for change in ({"device": "h100"}, {"torch": "2.12.0"}, {"cell": {"group": 8}}, {"more": None}):
        assert key_of({**identity, **change}) != key_of(identity)


def test_removing_deletes_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append("a", {"status": "ok"})
    journal.remove()
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize(
    ("make", "found"), [(os.mkfifo, "a pipe"), (Path.mkdir, "Is a directory")], ids=["pipe", "folder"]
)
def test_what_is_no_file_is_refused_without_a_wait(tmp_path: Path, make: Callable[[Path], None], found: str) -> None:
    make(tmp_path / "run.jsonl")

    with pytest.raises(BadFile, match=f"required a file that can be written, found {found}"):
        Journal(tmp_path / "run.jsonl")


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to("/dev/full")

    with pytest.raises(BadFile, match="found a device"):
        Journal(tmp_path / "run.jsonl")
