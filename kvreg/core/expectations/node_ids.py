"""pytest node ids and the patterns that take them: an exact id, or a glob inside the parameter tail.

    tests/test_cache.py::TestPages::test_copy[int4-16-planar.1]
    └────────────────── base ────────────────┘└───── tail ─────┘

The base is always exact, so that no entry reaches into another test or file. Inside the tail `*` stands for any text
and `?` for one character; `\\*` and `\\?` are the signs themselves, and brackets mean nothing. `[*]` takes a test with
whatever parameters it has or gets, none included.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property

ANY_TAIL = "[*]"

_WILD = re.compile(r"\\[*?]|[*?]")


def split(node_id: str) -> tuple[str, str]:
    """Return (base, tail); the tail starts at the first bracket behind the file's name, and may be empty."""
    start = node_id.find("[", max(node_id.find("::"), 0))
    return (node_id, "") if start < 0 else (node_id[:start], node_id[start:])


def file_of(node_id: str) -> str:
    """Return the file that a node id lies in."""
    return node_id.partition("::")[0]


def misread(text: str) -> str | None:
    """Return what is wrong with the text of a pattern, as `required ..., found ...`; None where it is one."""
    base, tail = split(text)
    if "::" not in base:
        return f"required a node id (file::test), found {text!r}"
    if tail and not tail.endswith("]"):
        return f"required a tail that ends with ], found {tail!r}"
    if _WILD.search(base):
        return f"required wildcards only inside the parameter tail [...], found {base!r}"
    return None


def escaped(tail: str) -> str:
    """Return a live id's tail as a pattern that takes it alone."""
    return re.sub(r"[*?]", r"\\\g<0>", tail)


def _fixed(text: str) -> str:
    """Return a text as fnmatch takes it by the letter."""
    return re.sub(r"[*?[]", r"[\g<0>]", text)


@dataclass(frozen=True)
class Pattern:
    """What an expectation's `test` takes."""

    text: str

    @cached_property
    def base(self) -> str:
        """The exact part."""
        return split(self.text)[0]

    @cached_property
    def tail(self) -> str:
        """The parameter part as it is written."""
        return split(self.text)[1]

    @cached_property
    def is_glob(self) -> bool:
        """Whether the tail holds a wildcard."""
        return any(len(sign) == 1 for sign in _WILD.findall(self.tail))

    @cached_property
    def literal(self) -> str:
        """The tail that an exact pattern takes; of a glob, what every id that it takes starts with."""
        found: list[str] = []
        end = 0
        for sign in _WILD.finditer(self.tail):
            found.append(self.tail[end : sign.start()])
            if len(sign[0]) == 1:
                return "".join(found)
            found.append(sign[0][1])
            end = sign.end()
        return "".join([*found, self.tail[end:]])

    def takes(self, node_id: str) -> bool:
        """Return whether the pattern takes an id."""
        base, tail = split(node_id)
        return base == self.base and self.takes_tail(tail)

    def takes_tail(self, tail: str) -> bool:
        """Return whether it takes the id of its base with this tail."""
        if not self.is_glob:
            return tail == self.literal
        return self._regex.fullmatch(tail) is not None or (tail == "" and self.tail == ANY_TAIL)

    def contains(self, other: Pattern) -> bool:
        """Return whether it takes every id that `other` takes; False where that cannot be told from the texts."""
        if self.base != other.base:
            return False
        if not other.is_glob:
            return self.takes_tail(other.literal)
        if self.tail in (ANY_TAIL, other.tail):
            return True
        # Where all signs are `*`, taking the other's text means that each of its wildcards lies inside of one here.
        only_stars = all(sign == "*" for sign in _WILD.findall(self.tail))
        return only_stars and other.tail != ANY_TAIL and self.takes_tail(other.tail)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        # fnmatch's expressions never go back behind a `*`, so that many of them take no more time than a few.
        parts: list[str] = []
        end = 0
        for sign in _WILD.finditer(self.tail):
            parts.append(_fixed(self.tail[end : sign.start()]))
            parts.append(sign[0] if len(sign[0]) == 1 else _fixed(sign[0][1]))
            end = sign.end()
        return re.compile(fnmatch.translate("".join([*parts, _fixed(self.tail[end:])])))

    def __str__(self) -> str:
        return self.text
