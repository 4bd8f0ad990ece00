"""Which ids an entry takes and which entries an id has, for thousands of entries and tens of thousands of ids.

Both are indexed by the exact part of an id; within one test a glob looks only at the ids that start like it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.node_ids import ANY_TAIL, Pattern, split


class IdIndex:
    """The collected ids of a suite."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._tails: dict[str, list[str]] = {}
        self._ids = frozenset(ids)
        for node_id in self._ids:
            base, tail = split(node_id)
            self._tails.setdefault(base, []).append(tail)
        for tails in self._tails.values():
            tails.sort()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._ids

    @cached_property
    def ordered(self) -> tuple[str, ...]:
        """Every id, sorted."""
        return tuple(sorted(self._ids))

    @property
    def tests(self) -> Mapping[str, Sequence[str]]:
        """Base -> the tails that it was collected with, sorted."""
        return self._tails

    def hits(self, pattern: Pattern) -> list[str]:
        """Return the ids that a pattern takes, sorted."""
        base = pattern.base
        if not pattern.is_glob:
            node_id = base + pattern.literal
            return [node_id] if node_id in self._ids else []
        tails = self._tails.get(base, [])
        if pattern.tail == ANY_TAIL:
            return [base + tail for tail in tails]
        start = pattern.literal
        found: list[str] = []
        for place in range(bisect_left(tails, start), len(tails)):
            tail = tails[place]
            if not tail.startswith(start):
                break
            if pattern.takes_tail(tail):
                found.append(base + tail)
        return found


class EntryIndex:
    """The entries of a list, asked by id."""

    def __init__(self, entries: Iterable[Expectation]) -> None:
        self._exact: dict[str, list[Expectation]] = {}
        self._globs: dict[str, list[Expectation]] = {}
        for entry in entries:
            pattern = entry.pattern
            if pattern.is_glob:
                self._globs.setdefault(pattern.base, []).append(entry)
            else:
                self._exact.setdefault(pattern.base + pattern.literal, []).append(entry)

    def of(self, node_id: str) -> list[Expectation]:
        """Return the entries that take an id, exact ones first; whether they hold at a place is theirs to say."""
        base, tail = split(node_id)
        globs = [entry for entry in self._globs.get(base, ()) if entry.pattern.takes_tail(tail)]
        return [*self._exact.get(node_id, ()), *globs]
