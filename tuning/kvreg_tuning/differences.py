"""Two tuned files of one device: what differs, and one made of both.

Where both have an entry of one key, the first rule that tells them apart decides:

1. launch parameters that the variant can be launched with go before others, which are never used;
2. the hash of the kernel that is installed goes before another one, for the same reason;
3. `measured` goes before `estimated`;
4. the faster one: time over the default's of the same run, else the time itself (`judging.better`);
5. the newer date;
6. the one that came first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvreg.core.tuned_files import EntryRecord
from kvreg_tuning.judging import Change, Judge, better

Side = Literal["first", "second", "both"]
KernelHash = Callable[[str], str | None]
"""From a variant to the hash of its kernel that is installed; None where there is none."""
Fault = Callable[[EntryRecord], str | None]
"""From an entry to why it cannot be launched; None where nothing tells."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One key of two files."""

    first: EntryRecord | None
    second: EntryRecord | None

    @property
    def side(self) -> Side:
        """Which of the files has it."""
        return "both" if self.first and self.second else "first" if self.first else "second"

    @property
    def entry(self) -> EntryRecord:
        """Either of the two: they have one key."""
        found = self.first or self.second
        assert found is not None
        return found

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of the fields that differ; empty unless both have it."""
        if self.first is None or self.second is None:
            return ()
        first, second = self.first.model_dump(), self.second.model_dump()
        return tuple(name for name in first if first[name] != second[name])


def pairs(first: Sequence[EntryRecord], second: Sequence[EntryRecord]) -> tuple[Pair, ...]:
    """Return each key that either file has and that is not equal in both, in the files' order."""
    mine, theirs = ({entry.key: entry for entry in some} for some in (first, second))
    found = [Pair(mine.get(key), theirs.get(key)) for key in dict.fromkeys([*mine, *theirs])]
    return tuple(pair for pair in found if pair.side != "both" or pair.differing)


def by_merit(installed: KernelHash, fault: Fault) -> Judge:
    """Return the judge that decides by the module's rules."""

    def judge(old: EntryRecord, new: EntryRecord) -> Change:
        if old == new:
            return Change("kept", old, new, "equal in both")
        if (fault(old) is None) is not (fault(new) is None):
            return _take(old, new, fault(new) is None, "the one that can be launched")
        current = installed(old.variant)
        if current in (old.kernel_hash, new.kernel_hash) and old.kernel_hash != new.kernel_hash:
            return _take(old, new, new.kernel_hash == current, "of the kernel that is installed")
        if old.source != new.source:
            return _take(old, new, new.source == "measured", "measured goes before estimated")
        if better(new, old) or better(old, new):
            return _take(old, new, better(new, old), "the faster one")
        if old.date != new.date:
            return _take(old, new, new.date > old.date, "the newer one")
        return _take(old, new, False, "the one that came first")

    return judge


def fold(sources: Sequence[Sequence[EntryRecord]], judge: Judge) -> list[EntryRecord]:
    """Return one entry for each key of several files."""
    entries: dict[tuple[str, ...], EntryRecord] = {}
    for entry in (each for source in sources for each in source):
        old = entries.get(entry.key)
        entries[entry.key] = entry if old is None else judge(old, entry).entry
    return list(entries.values())


def _take(old: EntryRecord, new: EntryRecord, takes_new: bool, why: str) -> Change:
    return Change("replaced", new, old, why) if takes_new else Change("kept", old, new, why)
