"""YAML as plain values that know their lines: mappings, lists and texts, built from the parser's events.

Scalars stay texts, so that `triton: 3.10` is no 3.1, `on` no truth and a date a date only where a field wants one; an
empty value, `~` and `null` are None. PyYAML's own constructor takes 4 s for 5 000 entries, its events 0.3 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kvreg.core.errors import BadFile

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a PyYAML built without libyaml has only the slow one
_NULLS = ("", "~", "null")


class Lined(dict[str, Any]):
    """A mapping of a file; lines count from 1."""

    line: int
    last: int
    """Line of its last value's end."""
    lines: dict[str, int]
    """Key -> the line that it stands in."""


class LinedList(list[Any]):
    """A list of a file."""

    lines: list[int]
    """The line in which each item starts."""


def parse(text: str, file: Path) -> Any:
    """Return the one document of `text`; raises BadFile, naming `file` and the line, where it is not YAML."""
    try:
        return _Builder(iter(yaml.parse(text, Loader=_Loader)), file).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise BadFile(f"{file}{line}: required valid YAML, found: {problem}; correct the file") from None
    except RecursionError:
        raise BadFile(f"{file}: required YAML of a sane depth, found one too deep to read; correct the file") from None


class _Builder:
    def __init__(self, events: Iterator[Any], file: Path) -> None:
        self._events = events
        self._file = file
        self._anchors: dict[str, Any] = {}
        self._last = 0
        """Line in which the latest value ends."""

    def document(self) -> Any:
        value = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._wrong(event, "one document", "a second one")
                value = self._value(next(self._events))
        return value

    def _value(self, event: Any) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._wrong(event, "an alias of an anchor above", f"*{event.anchor}")
            return self._anchors[event.anchor]
        if isinstance(event, yaml.SequenceStartEvent):
            listed = LinedList()
            listed.lines = []
            while not isinstance(each := next(self._events), yaml.SequenceEndEvent):
                listed.lines.append(each.start_mark.line + 1)
                listed.append(self._value(each))
            return self._kept(event, listed)
        return self._kept(event, self._mapping(event))

    def _scalar(self, event: Any) -> Any:
        end = event.end_mark
        self._last = end.line if end.column == 0 and end.line > event.start_mark.line else end.line + 1
        plain = event.implicit[0]
        value = None if plain and event.value in _NULLS else str(event.value)
        return self._kept(event, value)

    def _mapping(self, start: Any) -> Lined:
        found = Lined()
        found.line = start.start_mark.line + 1
        found.lines = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event)
            if not isinstance(key, str):
                raise self._wrong(event, "a text as key", "another value")
            if key in found:
                raise self._wrong(event, "a key once in a mapping", f"{key!r} twice")
            found.lines[key] = event.start_mark.line + 1
            found[key] = self._value(next(self._events))
        found.last = max(self._last, found.line)
        return found

    def _kept(self, event: Any, value: Any) -> Any:
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _wrong(self, event: Any, required: str, found: str) -> BadFile:
        return BadFile(
            f"{self._file}:{event.start_mark.line + 1}: required {required}, found {found}; correct the file"
        )
