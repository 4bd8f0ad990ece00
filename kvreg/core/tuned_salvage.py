"""What can be saved of a tuned file that is no YAML any more: cut off, merged badly, overwritten in places.

Entries are items of one list, so each is read by itself; whether what comes out is an entry, the reader judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvreg.core import yaml_files
from kvreg.core.errors import BadFile
from kvreg.core.input_files import no_file

_ENTRIES = re.compile(r"^entries:\s*$")
_WORD = re.compile(r"^[^\w\s]*(schema|device|entries):", re.MULTILINE)
FRAME = frozenset(("schema", "device", "environment", "entries"))
"""The words around the entries."""
_KEY = re.compile(r"^[a-z_]+:")
_ITEM = re.compile(r"^(?P<indent> *)- ")


def salvage(path: Path) -> dict[str, Any] | None:
    """Return the frame and entries that can be read; None where there is no device or no entry among them."""
    if no_file(path) is not None:
        return None
    try:
        # Bytes that are no UTF-8 become a sign that no word of an entry holds, so they spoil their entry alone.
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    start = next((number for number, line in enumerate(lines) if _ENTRIES.match(line)), len(lines))
    rest = lines[start + 1 :]
    end = next((number for number, line in enumerate(rest) if _KEY.match(line)), len(rest))
    frame = _frame([*lines[:start], *rest[end:]])
    entries = [read for item in _items(rest[:end]) for read in _read(item)]
    return {"schema": 1, **frame, "entries": entries} if entries and "device" in frame else None


def looks_tuned(path: Path) -> bool:
    """Whether a file has the words of a tuned one, however damaged; where nothing can be read, nothing says no.

    An empty file is one that was cut off early.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return True
    try:
        read = yaml_files.parse(text)
    except BadFile:
        return _WORD.search(text) is not None
    return read is None or (isinstance(read, dict) and ("entries" in read or read.keys() <= FRAME))


def _frame(lines: list[str]) -> dict[str, Any]:
    whole = _mapping("\n".join(lines))
    if whole is not None:
        return whole
    # One bad line costs its own key: an environment that is lost is unknown, and compared with nothing.
    parts = [part for line in lines if (part := _mapping(line)) is not None]
    return {name: value for part in parts for name, value in part.items()}


def _items(lines: list[str]) -> Iterator[str]:
    """Yield the text of each item of the list, as deep as its first one."""
    first = next((match for line in lines if (match := _ITEM.match(line))), None)
    if first is None:
        return
    mark = f"{first['indent']}- "
    item: list[str] = []
    for line in lines:
        if line.startswith(mark):
            yield "\n".join(item)
            item = []
        item.append(line)
    yield "\n".join(item)


def _read(item: str) -> list[Any]:
    try:
        read = yaml_files.parse(item)
    except BadFile:
        return []
    return [each for each in read if isinstance(each, dict)] if isinstance(read, list) else []


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        read = yaml_files.parse(text)
    except BadFile:
        return None
    return read if isinstance(read, dict) else None
