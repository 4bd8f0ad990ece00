"""Finds pytest's calls in shell text: in quotes, behind `cd`, over continued lines, inside of other commands' strings.

Not a shell: nothing is expanded, and a text that does not close its quotes is read to its end. What is looked for is
what a call leaves out, so a word too many does no harm and a call that is missed does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import join, normpath

_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n", "`")
_WITH_VALUE = {
    *("-k", "-m", "-n", "-c", "-o", "-p", "-r", "-W", "--deselect", "--ignore", "--ignore-glob", "--rootdir"),
    *("--timeout", "--junitxml", "--junit-xml", "--maxfail", "--durations", "--dist", "--tb", "--log-cli-level"),
    *("--basetemp", "--cov", "--cov-report", "--reruns", "--splits", "--group", "--numprocesses", "--config"),
}
"""pytest's and common plug-ins' options whose value may be the next word."""
_TRUE = ("true", ":", "/bin/true")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of pytest."""

    folder: str
    """Folder that `cd` has led to, relative to where the text starts; empty at its start."""
    paths: tuple[str, ...]
    """Files, folders and ids that it names."""
    deselected: tuple[str, ...]
    ignored: tuple[str, ...]
    keyword: str
    swallowed: bool
    """Whether `|| true` hides its result."""


@dataclass(frozen=True, slots=True)
class _Operator:
    text: str


def calls(text: str, folder: str = "") -> Iterator[Call]:
    """Yield the pytest calls of a shell text, in their order."""
    commands = list(_commands(text))
    for place, (words, operator) in enumerate(commands):
        if words[:1] == ["cd"] and len(words) > 1:
            folder = normpath(join(folder, words[1]))
            continue
        start = _pytest_at(words)
        if start is not None:
            following = commands[place + 1][0] if place + 1 < len(commands) else []
            swallowed = operator == "||" and following[:1] in [[word] for word in _TRUE]
            yield _call(words[start:], folder if folder != "." else "", swallowed)
            continue
        for word in words:
            if "pytest" in word and re.search(r"\s", word):
                yield from calls(word, folder)


def _commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield (words, the operator behind them) of each simple command."""
    words: list[str] = []
    for token in _tokens(text):
        if isinstance(token, _Operator):
            if words:
                yield words, token.text
            words = []
        else:
            words.append(token)
    if words:
        yield words, ""


def _tokens(text: str) -> Iterator[str | _Operator]:
    place = 0
    word: list[str] | None = None
    while place < len(text):
        sign = text[place]
        if sign == "\\" and text[place + 1 : place + 2] == "\n":
            place += 2
            continue
        operator = next((each for each in _OPERATORS if text.startswith(each, place)), None)
        if sign in " \t\r<>" or operator is not None or (sign == "#" and word is None):
            if word is not None:
                yield "".join(word)
                word = None
            if operator is not None:
                yield _Operator(operator)
            if sign == "#":
                end = text.find("\n", place)
                place = len(text) if end < 0 else end
            else:
                place += len(operator or sign)
            continue
        word = word or []
        if sign in "'\"":
            inner, place = _quoted(text, place)
            word.append(inner)
        elif sign == "\\":
            word.append(text[place + 1 : place + 2])
            place += 2
        else:
            word.append(sign)
            place += 1
    if word is not None:
        yield "".join(word)


def _quoted(text: str, place: int) -> tuple[str, int]:
    """Return what stands between the quotes that open at `place`, and where the text goes on."""
    sign = text[place]
    found: list[str] = []
    place += 1
    while place < len(text) and text[place] != sign:
        if sign == '"' and text[place] == "\\" and text[place + 1 : place + 2] in ('"', "\\", "$", "`", "\n"):
            place += 1
            if text[place] == "\n":
                place += 1
                continue
        found.append(text[place])
        place += 1
    return "".join(found), place + 1


def _pytest_at(words: list[str]) -> int | None:
    """Return where pytest's arguments start in a command; None where it is not called."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] in ("pytest", "py.test") and (place == 0 or words[place - 1] != "install"):
            return place + 1
    return None


def _call(arguments: list[str], folder: str, swallowed: bool) -> Call:
    found: dict[str, list[str]] = {"--deselect": [], "--ignore": [], "-k": []}
    paths: list[str] = []
    place = 0
    while place < len(arguments):
        name, equals, value = arguments[place].partition("=")
        if name.startswith("-k") and name != "-k" and not name.startswith("--"):
            name, equals, value = "-k", "=", arguments[place][2:]
        place += 1
        if not name.startswith("-"):
            paths.append(arguments[place - 1])
            continue
        if not equals and name in _WITH_VALUE and place < len(arguments):
            value = arguments[place]
            place += 1
        if name in found:
            found[name].append(value)
        elif name == "--ignore-glob":
            found["--ignore"].append(value)
    return Call(
        folder,
        tuple(paths),
        tuple(found["--deselect"]),
        tuple(found["--ignore"]),
        " and ".join(found["-k"][-1:]),  # pytest takes the last one
        swallowed,
    )


def negated_words(expression: str) -> tuple[str, ...]:
    """Return the words that `-k` leaves out: those of `not WORD` among the parts that `and` joins.

    What such an expression asks for besides is a choice of tests and leaves nothing out by name. One that cannot be
    taken apart so (`or`, a negated group) is returned whole where it has a `not`.
    """
    parts = _conjuncts(expression)
    if not re.search(r"\bnot\b", expression):
        return ()
    if any(re.search(r"\bnot\b", part) and not re.fullmatch(r"not\s+[^\s()]+", part) for part in parts):
        return (" ".join(expression.split()),)
    return tuple(part.split()[1] for part in parts if part.startswith("not"))


def _conjuncts(expression: str) -> list[str]:
    """Return what `and` joins at the outermost level; the whole where that level has an `or`."""
    parts: list[list[str]] = [[]]
    depth = 0
    for word in re.findall(r"[()]|[^\s()]+", expression):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if word == "or" and depth == 0:
            return [expression]
        if word == "and" and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return [_bare(" ".join(part)) for part in parts]


def _bare(part: str) -> str:
    """Return a part without brackets around a single word."""
    return re.sub(r"\( (\S+) \)", r"\1", part)
