"""The journal of a validation: one JSON line a finished cell, on disk before the next one begins.

A run that is cut off (a time limit, a lost card, a killed process) finds its finished cells here and goes on behind
them. A line counts only under its own key, which covers the kernel's hash, the device and the versions.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg.core.errors import BadFile, UsageError, wrong
from kvreg.core.input_files import no_file

SCHEMA = 1


def key_of(identity: Mapping[str, Any]) -> str:
    """Return what a journal knows a line by: a digest of all that its result depends on."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """One append-only JSONL file, locked for the process that holds it. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; raises UsageError when another process holds it, BadFile when it is no journal."""
        self.path = path
        try:
            if (strange := no_file(path)) is not None:  # a device has no end, and a pipe cannot be read again
                raise OSError(errno.EINVAL, strange)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 (held open for the lock; closed by close)
        except OSError as error:
            raise BadFile(
                wrong(
                    f"journal {path}",
                    required="a file that can be written",
                    found=error.strerror or type(error).__name__,
                    remedy="name another one with --journal, or another folder in KVREG_HOME",
                )
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                wrong(
                    f"journal {path}",
                    required="one validation at a time",
                    found="another one that is running",
                    remedy="wait for it, or name another file with --journal",
                )
            ) from None
        try:
            self._lines = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the newest line of a key."""
        return self._lines.get(key)

    def append(self, key: str, line: Mapping[str, Any]) -> dict[str, Any]:
        """Add a line and wait until it is on the disk; returns it as it will be read."""
        record = {"schema": SCHEMA, "key": key, **line}
        self._file.write(json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines[key] = record
        return record

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file: everything in it has become a trace or was shown."""
        self.path.unlink(missing_ok=True)
        self.close()

    def __len__(self) -> int:
        return len(self._lines)

    def _read(self) -> dict[str, dict[str, Any]]:
        self._file.seek(0)
        content = self._file.read()
        found: dict[str, dict[str, Any]] = {}
        lines = content.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if record["schema"] != SCHEMA:
                    raise ValueError(f"schema {record['schema']}")
                found[record["key"]] = record
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if number == len(lines):
                    # The process died while it wrote: what is not whole has not happened.
                    self._file.truncate(len(content) - len(line))
                    break
                raise BadFile(
                    wrong(
                        f"journal {self.path}, line {number}",
                        required=f"a JSON line of schema {SCHEMA} with a key",
                        found=str(error),
                        remedy="move the file away, or name another one with --journal",
                    )
                ) from None
        if content and not content.endswith(b"\n") and self._file.seek(0, os.SEEK_END) == len(content):
            self._file.write(b"\n")  # a whole last line whose end was lost
        return found
