"""What becomes of an entry for which a tuned file has one already, by the first rule that holds:

1. launch parameters that the variant cannot be launched with (`judge_of`): the new one, for the old one is never used;
2. another kernel hash: the new one, for the same reason;
3. `measured` goes before `estimated`, whichever is newer;
4. other versions of Triton, torch or driver, or unknown ones: the new one, made with what runs here (healed);
5. the same launch parameters: the new one, with its newer figures;
6. the old one where it is the better (`better`), else the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvreg.core.launchable import Launchable
from kvreg.core.tuned import SOFT
from kvreg.core.tuned_files import EntryRecord

Fate = Literal["added", "replaced", "healed", "kept"]
Judge = Callable[[EntryRecord, EntryRecord], "Change"]
"""From the file's entry and the one that comes, both of one key, to what becomes of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one entry that was to be written."""

    fate: Fate
    """added: it is new. replaced, healed: it took an older one's place. kept: the older one stayed."""
    entry: EntryRecord
    """The one that stands in the file now."""
    other: EntryRecord | None = None
    """The one that does not."""
    why: str = ""
    """The rule that decided between the two."""


def better(one: EntryRecord, other: EntryRecord) -> bool:
    """Whether `one` is the faster of two entries of one key, as far as their figures can be compared.

    Time over the default's of the same run comes first: it holds across days and clocks. Without it, the time itself;
    without that, neither is better.
    """
    for figure in (_against_default, lambda entry: entry.latency_us):
        mine, theirs = figure(one), figure(other)
        if mine is not None and theirs is not None:
            return mine < theirs
    return False


def by_the_rules(old: EntryRecord, new: EntryRecord) -> Change:
    """Decide between the file's entry and a new one of its key, by the module's rules."""
    if old.kernel_hash != new.kernel_hash:
        return Change("healed", new, old, f"the other one is of kernel {old.kernel_hash[:8]}")
    if (old.source == "estimated") is not (new.source == "estimated"):
        kept = old if new.source == "estimated" else new
        other = new if kept is old else old
        return Change("kept" if kept is old else "replaced", kept, other, f"{kept.source} goes before {other.source}")
    differing = _other_versions(old, new)
    if differing:
        return Change("healed", new, old, f"the other one was made with {differing}")
    if old.config == new.config:
        return Change("replaced", new, old, "the same launch parameters, newer figures")
    if better(old, new):
        return Change("kept", old, new, "it is faster against the default")
    return Change("replaced", new, old, "it is no slower against the default")


def judge_of(launchable: Launchable | None) -> Judge:
    """Return the module's rules for entries of one variant: an old one that cannot be launched goes before all else.

    None: the variant is not known here, so that nothing tells.
    """

    def decide(old: EntryRecord, new: EntryRecord) -> Change:
        fault = launchable.fault(old.config) if launchable is not None else None
        return by_the_rules(old, new) if fault is None else Change("healed", new, old, f"the other one {fault}")

    return decide


def _other_versions(old: EntryRecord, new: EntryRecord) -> str:
    then, now = old.environment or {}, new.environment or {}
    names = [name for name in SOFT if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'unknown')}" for name in names)


def _against_default(entry: EntryRecord) -> float | None:
    if entry.latency_us is None or not entry.default_latency_us:
        return None
    return entry.latency_us / entry.default_latency_us
