"""Near misses of a misspelt word; case counts as a misspelling."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> tuple[str, ...]:
    """Return up to `count` known words like `word`, the most alike first; `cutoff` is difflib's ratio."""
    # difflib costs 4 ms to import and is needed only when something went wrong.
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for each in known:
        by_lower.setdefault(each.lower(), each)
    return tuple(by_lower[each] for each in get_close_matches(word.lower(), list(by_lower), n=count, cutoff=cutoff))


def completed(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known words that `word` begins, else the one that is most like it."""
    words = tuple(known)
    begun = tuple(each for each in words if word and each.lower().startswith(word.lower()))
    return begun or nearest(word, words)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or the whole list where nothing is like `word`."""
    words = tuple(dict.fromkeys(known))
    near = nearest(word, words)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(words)}"


def choice(word: str, listed: Iterable[str]) -> str:
    """Return `did you mean X?`; for a message that has listed the words already."""
    near = nearest(word, dict.fromkeys(listed))
    return f"did you mean {near[0]}?" if near else "take one of these"
