"""The tuner's journal: appended to, never changed; shared by processes; set aside when damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kvreg.core.errors import BadFile, UsageError
from kvreg_tuning.journal import Journal, key_of
from kvreg_tuning.outcomes import RESULTS, Trial
from kvreg_tuning.subjects import Subject

SUBJECT = Subject("cpu", "torch-none-write@1", "write", "none", 64, 4, 8)
IDENTITY = {"kernel_hash": "ab" * 32, "torch": "2.13.0"}
TRIAL = Trial({"rows": 16}, "t32", "ok", us=12.5, spread=0.01, samples=20, gate={"e": 0.0}, launch="rows=16")


@pytest.mark.parametrize("result", RESULTS)
def test_a_trial_is_read_as_it_was_written(tmp_path: Path, result: str) -> None:
    trial = replace(TRIAL, result=result, reason="why: \x1b[31m\n", compile_s=1.5, resources={"shared_bytes": None})
    with Journal(tmp_path / "a/journal.sqlite") as journal:
        journal.add(SUBJECT, IDENTITY, [trial])
    with Journal(tmp_path / "a/journal.sqlite") as journal:
        (known,) = journal.trials()

        assert journal.trial(key_of(SUBJECT, IDENTITY, "t32", {"rows": 16})) == trial
        assert (known.subject, known.identity, known.trial) == (SUBJECT, IDENTITY, trial)


def test_a_key_covers_everything_that_a_result_depends_on() -> None:
    keys = {
        key_of(SUBJECT, IDENTITY, "t32", {"rows": 16}),
        key_of(SUBJECT, IDENTITY, "t64", {"rows": 16}),
        key_of(SUBJECT, IDENTITY, "t32", {"rows": 32}),
        key_of(SUBJECT, {**IDENTITY, "torch": "2.14.0"}, "t32", {"rows": 16}),
        key_of(SUBJECT, {**IDENTITY, "kernel_hash": "cd" * 32}, "t32", {"rows": 16}),
        *(key_of(replace(SUBJECT, **{name: value}), IDENTITY, "t32", {"rows": 16}) for name, value in [
            ("device", "h200"), ("variant", "x@2"), ("mode", "int8_per_token_head"), ("head_size", 96), ("group", 1),
            ("kv_heads", 4), ("page", 32), ("dtype", "fp16"), ("layout", "inline.1"),
            ("features", ("causal", "window")),
        ]),
    }  # fmt: skip

    assert len(keys) == 15


def test_rows_are_neither_changed_nor_deleted(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.add(SUBJECT, IDENTITY, [TRIAL])
    with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
        for change in ("UPDATE trials SET us = 1", "DELETE FROM trials"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change)


def test_the_newest_row_of_a_key_counts(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.add(SUBJECT, IDENTITY, [TRIAL, replace(TRIAL, us=9.0)])

        found = journal.trial(key_of(SUBJECT, IDENTITY, "t32", TRIAL.config))
        assert found is not None
        assert found.us == 9.0
        assert [each.trial.us for each in journal.trials()] == [9.0]


@pytest.mark.parametrize("damage", ["noise", "middle"])
def test_a_damaged_journal_is_set_aside_and_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.add(SUBJECT, IDENTITY, [replace(TRIAL, config={"rows": n}) for n in range(400)])
    content = bytearray(path.read_bytes())
    content = bytearray(b"no database at all " * 400) if damage == "noise" else content
    content[4096 : 4096 + 3000] = b"\xff" * 3000
    path.write_bytes(content)

    with Journal(path) as journal:
        assert journal.set_aside is not None
        assert journal.set_aside.read_bytes() == content
        assert journal.set_aside.name.startswith("journal.sqlite.broken-")
        assert list(journal.trials()) == []
        journal.add(SUBJECT, IDENTITY, [TRIAL])


def test_a_journal_of_another_schema_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")

    with pytest.raises(BadFile, match="schema 99"):
        Journal(path)
    assert [each.name for each in tmp_path.iterdir()] == ["journal.sqlite"]


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="set KVREG_HOME"):
        Journal(tmp_path / "file/journal.sqlite")


WRITER = """
import sys
from pathlib import Path
from kvreg_tuning.journal import Journal
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.subjects import Subject
path, number = Path(sys.argv[1]), sys.argv[2]
subject = Subject("cpu", "torch-none-write@1", "write", "none", 64, 4, 8)
with Journal(path) as journal:
    for place in range(30):
        journal.add(subject, {"writer": number}, [Trial({"rows": place}, "t32", "ok", us=1.0)])
"""


def test_a_new_journal_is_opened_by_several_at_once(tmp_path: Path) -> None:
    """While one changes the mode of the file, SQLite refuses the others at once; seen in one of 30 rounds."""

    def open_and_write(path: Path) -> None:
        together.wait()
        with Journal(path) as journal:
            journal.note("begun", {})

    together = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        for round_ in range(30):
            list(pool.map(open_and_write, [tmp_path / f"{round_}.sqlite"] * 6))


def test_two_processes_append_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(number)]) for number in range(2)]

    assert [each.wait(60) for each in writers] == [0, 0]
    with Journal(path) as journal:
        assert len(list(journal.trials())) == 60
