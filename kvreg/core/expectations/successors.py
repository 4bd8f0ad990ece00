"""What became of a test whose recorded id is no longer collected: its nearest live ids, and the sure one if any.

A test usually loses its id in one of two ways: it gains a parameter (`[int4-16]` becomes `[False-int4-16]`), or its
file moves. Where exactly one live id can have come from the dead one by such a step, that id is its sure successor.
A value that changed, a parameter that went away or a test that gained its first one are only ever proposed: the entry
would then say something about cases that nobody has looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from posixpath import basename

from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.node_ids import ANY_TAIL, Pattern, escaped, file_of
from kvreg.core.near import nearest

PROPOSED = 3
"""Live ids that are named at most."""
_LOOKED_AT = 200
"""Ids that share a rare word with the dead one and are compared with it: what keeps thousands of dead ids quick."""
_ALIKE = 0.5
"""Share of common words from which an id is worth a proposal."""
HIDDEN = "__main__"
"""What stands for the file in lists that do not name it."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Live ids or patterns that a dead one may have become, the likeliest first."""

    live: tuple[str, ...] = ()
    sure: str | None = None


class Successors:
    """Looks up dead patterns among the ids of one collection; what a test or file needs is indexed on first use."""

    def __init__(self, index: IdIndex) -> None:
        self._index = index
        self._cases: dict[str, _Cases] = {}

    def of(self, pattern: Pattern) -> Nearest:
        """Return what a pattern that takes no id may have become."""
        if pattern.base in self._index.tests:
            return self._same_test(pattern)
        return self._moved(pattern) or Nearest(self._alike(pattern))

    def _same_test(self, pattern: Pattern) -> Nearest:
        base = pattern.base
        tails = self._index.tests[base]
        if not pattern.tail:
            return Nearest((base + ANY_TAIL,))
        if list(tails) == [""]:
            return Nearest((base,))
        if pattern.is_glob:
            widened = Pattern(f"{base}[*-{pattern.tail[1:]}")
            return Nearest((widened.text,) if self._index.hits(widened) else ())
        if base not in self._cases:
            self._cases[base] = _Cases(tails)
        return self._cases[base].nearest(base, _words(pattern.literal))

    def _moved(self, pattern: Pattern) -> Nearest | None:
        """Return the same test with the same parameters in other files; None where there is none."""
        file, _, name = pattern.base.partition("::")
        found = [
            base + pattern.tail
            for base in self._by_name.get(name, ())
            if self._index.hits(Pattern(base + pattern.tail))
        ]
        if not found:
            return None
        same_name = [text for text in found if file == HIDDEN or basename(file_of(text)) == basename(file)]
        # A file that is still there has not moved: the other test of this name is then another test.
        is_sure = len(same_name) == 1 and file not in self._by_file
        return Nearest(tuple(dict.fromkeys([*same_name, *found]))[:PROPOSED], same_name[0] if is_sure else None)

    def _alike(self, pattern: Pattern) -> tuple[str, ...]:
        """Return tests of a name like the dead one's, those of its own file before others."""
        file, _, name = pattern.base.partition("::")
        words = _name_words(name)
        own = self._by_file.get(file, [])
        ranked = _ranked(words, own, _base_words) or nearest(pattern.base, own[:_LOOKED_AT], count=PROPOSED)
        if not ranked:
            rare = min((self._by_word[word] for word in words if word in self._by_word), key=len, default=[])
            ranked = _ranked(words, rare, _base_words)
        return tuple(self._shown(base, pattern.tail) for base in ranked)

    def _shown(self, base: str, tail: str) -> str:
        """Return a test with the dead one's parameters where it has them, else its one id, else all of its cases."""
        if tail and self._index.hits(Pattern(base + tail)):
            return base + tail
        tails = self._index.tests[base]
        return base + escaped(tails[0]) if len(tails) == 1 else base + ANY_TAIL

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for base in self._index.tests:
            found.setdefault(base.partition("::")[2], []).append(base)
        return found

    @cached_property
    def _by_file(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for base in self._index.tests:
            found.setdefault(file_of(base), []).append(base)
        return found

    @cached_property
    def _by_word(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for base in self._index.tests:
            for word in set(_base_words(base)):
                found.setdefault(word, []).append(base)
        return found


class _Cases:
    """The parameter cases of one test, indexed by what is left when one parameter is taken out."""

    def __init__(self, tails: Iterable[str]) -> None:
        self._tails = [(_words(tail), tail) for tail in tails]

    def nearest(self, base: str, dead: Words) -> Nearest:
        gained = self._without_one.get(dead, ())
        if gained:
            found = tuple(base + escaped(tail) for tail in gained[:PROPOSED])
            # Where other cases still have as many parameters as the dead one, the test has not gained any.
            is_sure = len(gained) == 1 and all(len(words) != len(dead) for words, _ in self._tails)
            return Nearest(found, found[0] if is_sure else None)
        lost = [tail for short in _shortened(dead) for tail in self._whole.get(short, ())]
        changed = [tail for short in _shortened(dead) for tail in self._without_one.get(short, ())]
        near = dict.fromkeys([*lost, *(tail for tail in changed if len(_words(tail)) == len(dead))])
        if not near:
            rare = min((self._by_word[word] for word in dead if word in self._by_word), key=len, default=[])
            near = dict.fromkeys(_ranked(dead, rare, _words))
        return Nearest(tuple(base + escaped(tail) for tail in near)[:PROPOSED])

    @cached_property
    def _whole(self) -> dict[Words, list[str]]:
        found: dict[Words, list[str]] = {}
        for words, tail in self._tails:
            found.setdefault(words, []).append(tail)
        return found

    @cached_property
    def _without_one(self) -> dict[Words, list[str]]:
        found: dict[Words, list[str]] = {}
        for words, tail in self._tails:
            for short in _shortened(words):
                found.setdefault(short, []).append(tail)
        return found

    @cached_property
    def _by_word(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for words, tail in self._tails:
            for word in set(words):
                found.setdefault(word, []).append(tail)
        return found


def _words(tail: str) -> Words:
    """Return the parameters of a tail, as far as pytest's `-` tells them apart."""
    return tuple(tail[1:-1].split("-")) if tail else ()


def _name_words(name: str) -> Words:
    return tuple(word for word in name.replace("::", "_").split("_") if word and word != "test")


def _base_words(base: str) -> Words:
    return _name_words(base.partition("::")[2])


def _shortened(words: Words) -> set[Words]:
    return {words[:place] + words[place + 1 :] for place in range(len(words))}


def _ranked(wanted: Words, texts: Sequence[str], words_of: Callable[[str], Words]) -> Sequence[str]:
    """Return the texts that share most words with `wanted`, as many as are proposed."""
    counted = Counter(wanted)
    scored: list[tuple[float, str]] = []
    for text in texts[:_LOOKED_AT]:
        words = words_of(text)
        shared = sum((counted & Counter(words)).values())
        share = 2 * shared / (len(wanted) + len(words)) if words else 0.0
        if share >= _ALIKE:
            scored.append((-share, text))
    return [text for _, text in sorted(scored)[:PROPOSED]]
