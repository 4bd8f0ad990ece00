"""The journal of all tuning: an append-only SQLite file under KVREG_HOME, one row a trial and bucket.

A run that was cut off, however it ended, finds its finished trials here and goes on behind them. A row counts only
under its own key, a digest of all that its result depends on: device, kernel hash, versions, shape, bucket, config.
Several processes may use one file (write-ahead log); a damaged one is set aside and named, never deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg.core.errors import BadFile, UsageError, wrong
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.subjects import Subject

SCHEMA = 1
IN_MEMORY = Path(":memory:")
"""A journal that ends with the process, for replays that nobody resumes."""

WAIT_S = 30.0
"""How long a write waits for another process's; one takes milliseconds."""
LOOK_AGAIN_S = 0.02

_TABLES = """
CREATE TABLE IF NOT EXISTS trials (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL, at TEXT NOT NULL, subject TEXT NOT NULL, identity TEXT NOT NULL,
    bucket TEXT NOT NULL, config TEXT NOT NULL, result TEXT NOT NULL, reason TEXT NOT NULL, us REAL, spread REAL,
    samples INTEGER NOT NULL, compile_s REAL NOT NULL, gate_s REAL NOT NULL, bench_s REAL NOT NULL,
    gate TEXT NOT NULL, resources TEXT NOT NULL, launch TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS trials_by_key ON trials (key);
CREATE TABLE IF NOT EXISTS races (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL, at TEXT NOT NULL, subject TEXT NOT NULL, identity TEXT NOT NULL,
    bucket TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS races_by_key ON races (key);
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL, record TEXT NOT NULL
);
"""
_APPEND_ONLY = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{what} BEFORE {what.upper()} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;\n"
    for table in ("trials", "races", "runs")
    for what in ("update", "delete")
)
_COLUMNS = "bucket, config, result, reason, us, spread, samples, compile_s, gate_s, bench_s, gate, resources, launch"


@dataclass(frozen=True, slots=True)
class Known:
    """A trial as it was written down, and what it belongs to."""

    subject: Subject
    identity: Mapping[str, Any]
    at: str
    trial: Trial


@dataclass(frozen=True, slots=True)
class Race:
    """One race of finalists as it was written down."""

    subject: Subject
    identity: Mapping[str, Any]
    bucket: str
    at: str
    record: Mapping[str, Any]
    """configs, samples and verdict: see kvreg_tuning.finalists."""


def key_of(subject: Subject, identity: Mapping[str, Any], bucket: str, config: Mapping[str, int] | str) -> str:
    """Return what a row is known by; `config` may be a word for what is no trial."""
    text = json.dumps([subject.to_json(), dict(identity), bucket, config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """One open file. A context manager; not to be shared between threads."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`, setting a damaged file aside; raises UsageError where nothing can be written."""
        self.path = path
        self.set_aside: Path | None = None
        """Where a damaged journal was moved to."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._connection = _opened_in_turn(path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # locked, read-only, full: nothing is wrong with the file itself
                self.set_aside = _moved_away(path)
                self._connection = _opened_in_turn(path)
        except (OSError, sqlite3.OperationalError) as error:
            raise UsageError(
                wrong(f"journal {path}", required="a file to write to", found=str(error), remedy="set KVREG_HOME")
            ) from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def trial(self, key: str) -> Trial | None:
        """Return the newest row of a key."""
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM trials WHERE key = ? ORDER BY number DESC LIMIT 1", (key,)
        ).fetchone()
        return None if row is None else _trial(row)

    def add(self, subject: Subject, identity: Mapping[str, Any], trials: Iterable[Trial]) -> None:
        """Append rows and wait until they are on the disk."""
        now, about, of = _now(), _text(subject.to_json()), _text(identity)
        rows = [(key_of(subject, identity, each.bucket, each.config), now, about, of, *_row(each)) for each in trials]
        with self._connection:
            self._connection.executemany(
                f"INSERT INTO trials (key, at, subject, identity, {_COLUMNS}) VALUES ({','.join('?' * 17)})", rows
            )

    def race(self, key: str) -> Mapping[str, Any] | None:
        """Return the newest race of a key."""
        row = self._connection.execute(
            "SELECT record FROM races WHERE key = ? ORDER BY number DESC LIMIT 1", (key,)
        ).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def add_race(
        self, key: str, subject: Subject, identity: Mapping[str, Any], bucket: str, record: Mapping[str, Any]
    ) -> None:
        """Append the samples and verdict of a race."""
        row = (key, _now(), _text(subject.to_json()), _text(identity), bucket, _text(record))
        with self._connection:
            self._connection.execute(
                "INSERT INTO races (key, at, subject, identity, bucket, record) VALUES (?, ?, ?, ?, ?, ?)", row
            )

    def note(self, event: str, record: Mapping[str, Any]) -> None:
        """Append an event of a run: begun, ended, interrupted, lost."""
        with self._connection:
            self._connection.execute(
                "INSERT INTO runs (at, event, record) VALUES (?, ?, ?)", (_now(), event, _text(record))
            )

    def trials(self) -> Iterator[Known]:
        """Yield the newest row of every key, oldest first."""
        newest = "SELECT max(number) FROM trials GROUP BY key"
        for subject, identity, at, *row in self._connection.execute(
            f"SELECT subject, identity, at, {_COLUMNS} FROM trials WHERE number IN ({newest}) ORDER BY number"
        ):
            yield Known(Subject.from_json(json.loads(subject)), json.loads(identity), at, _trial(tuple(row)))

    def races(self) -> Iterator[Race]:
        """Yield the newest race of every key, oldest first."""
        newest = "SELECT max(number) FROM races GROUP BY key"
        for subject, identity, bucket, at, record in self._connection.execute(
            f"SELECT subject, identity, bucket, at, record FROM races WHERE number IN ({newest}) ORDER BY number"
        ):
            yield Race(Subject.from_json(json.loads(subject)), json.loads(identity), bucket, at, json.loads(record))


def _opened_in_turn(path: Path) -> sqlite3.Connection:
    """Open, by turns with other processes: SQLite does not wait for the lock under which a file changes its mode."""
    last = time.monotonic() + WAIT_S
    while True:
        try:
            return _opened(path)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > last:
                raise
            time.sleep(LOOK_AGAIN_S)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=WAIT_S)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, SCHEMA):
            raise BadFile(
                wrong(
                    f"journal {path}",
                    required=f"schema {SCHEMA}",
                    found=f"schema {found}, of another kvreg",
                    remedy="set KVREG_HOME to another folder, or move the file away",
                )
            )
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(health)
        connection.executescript(_TABLES + _APPEND_ONLY + f"PRAGMA user_version = {SCHEMA};")
    except BaseException:
        connection.close()
        raise
    return connection


def _moved_away(path: Path) -> Path:
    """Move a damaged journal, and the log that belongs to it, to a name that says so."""
    aside = path.with_name(f"{path.name}.broken-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    path.rename(aside)
    for tail in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + tail).rename(aside.with_name(aside.name + tail))
    return aside


def _row(trial: Trial) -> tuple[Any, ...]:
    return (
        trial.bucket,
        _text(dict(trial.config)),
        trial.result,
        trial.reason,
        trial.us,
        trial.spread,
        trial.samples,
        trial.compile_s,
        trial.gate_s,
        trial.bench_s,
        _text(dict(trial.gate)),
        _text(dict(trial.resources)),
        trial.launch,
    )


def _trial(row: tuple[Any, ...]) -> Trial:
    bucket, config, result, reason, us, spread, samples, compile_s, gate_s, bench_s, gate, resources, launch = row
    return Trial(
        json.loads(config),
        bucket,
        result,
        reason,
        us,
        spread,
        samples,
        compile_s,
        gate_s,
        bench_s,
        json.loads(gate),
        json.loads(resources),
        launch,
    )


def _text(value: Any) -> str:
    # Keys stay in their order: it is the order of a config's parameters, on every run.
    return json.dumps(value, separators=(",", ":"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
