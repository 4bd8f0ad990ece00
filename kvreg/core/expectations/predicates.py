"""When an expectation holds: a predicate over the place where tests run. Parsing, deciding, comparing two.

A predicate is a conjunction, one condition a word. Conditions are sets: names, or half-open intervals of versions
and sizes. So whether two predicates can hold together, and whether one holds wherever the other does, is decided
exactly; what depends on which cards exist is asked of `known.Known`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvreg.core.expectations.vocabulary import EVERYWHERE, NAMES, WORDS, WordType

Release = tuple[float, ...]
"""Numbers of a version without trailing zeros, or the one number of a size: tuples compare as versions do."""

_BOUND = re.compile(r"\s*(?P<sign><=|>=|==|<|>)\s*(?P<value>\d+(?:\.\d+)*)\s*")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_NOT = "not "
SIZE_SIGNS = ("<", ">=")


@dataclass(frozen=True, slots=True)
class Where:
    """One place where tests run. None means unknown: a condition on it neither holds nor can be excluded."""

    platform: str | None = None
    arch: str | None = None
    device: str | None = None
    memory_gib: float | None = None
    triton: str | None = None
    torch: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """A set of names: those listed, or all others."""

    words: tuple[str, ...]
    negated: bool = False

    def admits(self, name: str) -> bool:
        """Return whether `name` is in the set; a card's name covers its slices (`h200` takes `h200/mig-1g.18gb`)."""
        return self.negated != any(covers(word, name) for word in self.words)

    def __str__(self) -> str:
        shown = [f"{_NOT}{word}" if self.negated else word for word in self.words]
        return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"


@dataclass(frozen=True, slots=True)
class Interval:
    """Versions or sizes from `low` up to, and without, `high`; None is unbounded."""

    low: Release | None
    high: Release | None
    text: str = field(compare=False)

    def admits(self, value: Release) -> bool:
        """Return whether `value` lies in the interval."""
        return (self.low is None or self.low <= value) and (self.high is None or value < self.high)

    def meets(self, other: Interval) -> bool:
        """Return whether some value lies in both."""
        low, high = max(self.low or (), other.low or ()), _least(self.high, other.high)
        return high is None or low < high

    def contains(self, other: Interval) -> bool:
        """Return whether every value of `other` lies in this one."""
        starts = self.low is None or (other.low is not None and self.low <= other.low)
        ends = self.high is None or (other.high is not None and other.high <= self.high)
        return starts and ends

    @property
    def is_empty(self) -> bool:
        """Whether no value lies in it."""
        return self.high is not None and (self.low or ()) >= self.high

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class When:
    """A predicate; no condition at all means everywhere."""

    names: Mapping[str, Names] = field(default_factory=dict)
    bounds: Mapping[str, Interval] = field(default_factory=dict)

    def holds(self, where: Where) -> bool:
        """Return whether every condition is known to hold at `where`."""
        return self._decide(where, unknown=False)

    def may_hold(self, where: Where) -> bool:
        """Return whether no condition is known to fail at `where`."""
        return self._decide(where, unknown=True)

    def open_words(self, where: Where) -> tuple[str, ...]:
        """Return the words of the predicate that `where` says nothing about."""
        return tuple(word for word in (*self.names, *self.bounds) if getattr(where, word) is None)

    def _decide(self, where: Where, *, unknown: bool) -> bool:
        for word, names in self.names.items():
            name = getattr(where, word)
            if not (unknown if name is None else names.admits(name)):
                return False
        for word, interval in self.bounds.items():
            value = getattr(where, word)
            if not (unknown if value is None else interval.admits(release(value))):
                return False
        return True

    def bounds_meet(self, other: When) -> bool:
        """Return whether some versions and memory satisfy both predicates."""
        return all(self.bounds[word].meets(other.bounds[word]) for word in self.bounds.keys() & other.bounds.keys())

    def bounds_contain(self, other: When) -> bool:
        """Return whether all versions and memory that satisfy `other` satisfy this predicate."""
        return all(
            word in other.bounds and interval.contains(other.bounds[word]) for word, interval in self.bounds.items()
        )

    def __str__(self) -> str:
        shown = [
            *(f"{word} {names}" for word, names in self.names.items()),
            *(f"{word} {interval}" for word, interval in self.bounds.items()),
        ]
        return ", ".join(shown) or EVERYWHERE


def parse(value: str | Mapping[str, str | Sequence[str]]) -> When:
    """Return the predicate that a file states: `everywhere`, or a mapping from declared words to conditions.

    Raises ValueError, whose text names the word and what it requires, for a condition that cannot be read.
    """
    if isinstance(value, str):
        if value != EVERYWHERE:
            raise ValueError(f"required {EVERYWHERE!r} or a mapping, found {value!r}")
        return When()
    if not value:
        raise ValueError(f"required a condition, found none; write `when: {EVERYWHERE}`")
    names: dict[str, Names] = {}
    bounds: dict[str, Interval] = {}
    for word in WORDS:  # the vocabulary's order, so that equal predicates read equal
        if word in value:
            condition = value[word]
            if word in NAMES:
                names[word] = _names(word, [condition] if isinstance(condition, str) else condition)
            else:
                bounds[word] = _interval(word, condition)
    return When(names, bounds)


def written(when: When) -> str | dict[str, str | list[str]]:
    """Return the value that `parse` reads as `when`."""
    if not when.names and not when.bounds:
        return EVERYWHERE
    found: dict[str, str | list[str]] = {}
    for word, names in when.names.items():
        shown = [f"{_NOT}{each}" if names.negated else each for each in names.words]
        found[word] = shown[0] if len(shown) == 1 else shown
    return {**found, **{word: interval.text for word, interval in when.bounds.items()}}


def covers(name: str, other: str) -> bool:
    """Return whether `name` stands for `other` too: itself, or a slice of it."""
    return other == name or other.startswith(f"{name}/")


def release(value: str | float) -> Release:
    """Return the numbers that a version starts with (`3.9.0+git1` -> 3, 9), or the one of a size."""
    if isinstance(value, int | float):
        return (float(value),)
    match = _RELEASE.match(value.strip().removeprefix("v"))
    return _numbers(match[0]) if match else ()


def _names(word: str, listed: Sequence[str]) -> Names:
    wanted = sorted({each.strip() for each in listed})
    negated = [each.removeprefix(_NOT).strip() for each in wanted if each.startswith(_NOT)]
    if not wanted or "" in wanted or (negated and len(negated) != len(wanted)):
        raise ValueError(
            f"{word}: required names, or `{_NOT}NAME` for all of them, found {', '.join(wanted) or 'none'}"
        )
    return Names(tuple(negated or wanted), bool(negated))


def _interval(word: str, condition: str | Sequence[str]) -> Interval:
    text = condition if isinstance(condition, str) else ", ".join(condition)
    low: Release | None = None
    high: Release | None = None
    shown: list[str] = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part)
        if match is None or (WORDS[word] is WordType.SIZE and match["sign"] not in SIZE_SIGNS):
            signs = "`< 24` or `>= 16, < 24`" if WORDS[word] is WordType.SIZE else "bounds such as `>= 3.6, < 3.8`"
            raise ValueError(f"{word}: required {signs}, found {text!r}")
        shown.append(f"{match['sign']} {match['value']}")
        starts, ends = _half_open(match["sign"], match["value"], WORDS[word])
        low = max(low or (), starts) if starts is not None else low
        high = _least(high, ends)
    interval = Interval(low, high, ", ".join(shown))
    if interval.is_empty:
        raise ValueError(f"{word}: required bounds that some value satisfies, found {text!r}")
    return interval


def _half_open(sign: str, value: str, type_: WordType) -> tuple[Release | None, Release | None]:
    """Return one bound as (first value in, first value out); `<= 3.8` ends before 3.9, since 3.8.1 is a 3.8 too."""
    here = (float(value),) if type_ is WordType.SIZE else _numbers(value)
    digits = [int(part) for part in value.split(".")]
    after = _stripped((*digits[:-1], digits[-1] + 1))
    return {
        "<": (None, here),
        "<=": (None, after),
        "==": (here, after),
        ">=": (here, None),
        ">": (after, None),
    }[sign]


def _numbers(text: str) -> Release:
    return _stripped(tuple(int(part) for part in text.split(".")))


def _stripped(numbers: tuple[int, ...]) -> Release:
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers


def _least(first: Release | None, second: Release | None) -> Release | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
