"""Near misses of a misspelt word."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> tuple[str, ...]:
    """Return up to `count` known words like `word`, the most alike first; `cutoff` is difflib's ratio."""
    # difflib costs 4 ms to import and is needed only when something went wrong.
    from difflib import get_close_matches

    return tuple(get_close_matches(word, list(dict.fromkeys(known)), n=count, cutoff=cutoff))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or the whole list where nothing is like `word`."""
    words = tuple(dict.fromkeys(known))
    near = nearest(word, words)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(words)}"
