"""What pydantic found wrong with a file, in kvreg's words: the place, what is required there and what was found.

pydantic itself is not imported here: an error of its has loaded it already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvreg.core.near import suggestion

if TYPE_CHECKING:
    from pydantic import ValidationError

Place = tuple[int | str, ...]

_REQUIRED = {
    "missing": "a value",
    "extra_forbidden": "a known key",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number from {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number up to {le}",
}
"""What an error of each type asks for; the words in braces are of its context."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first fault of a document."""

    place: Place
    """Keys and numbers that lead there; empty for the whole document."""
    required: str
    found: str
    remedy: str | None
    """What to write instead of a key that is not known; None elsewhere."""

    def where(self) -> str:
        """Return the place as one word."""
        return ".".join(part if part.isprintable() else repr(part) for part in map(str, self.place)) or "the file"


def first(error: ValidationError, keys_at: Callable[[Place], Sequence[str]] | None = None) -> Fault:
    """Return the fault to name; `keys_at` gives the keys that may stand in the mapping at a place.

    A misspelt key comes before a missing one, since it is usually the cause.
    """
    told = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    place, kind = told["loc"], told["type"]
    if kind == "extra_forbidden":
        remedy = suggestion(str(place[-1]), keys_at(place[:-1])) if keys_at is not None else None
        return Fault(place, _REQUIRED[kind], "none of that name", remedy)
    return Fault(place, _required(told), "none" if kind == "missing" else _found(told["input"]), None)


def _required(told: Mapping[str, Any]) -> str:
    known = _REQUIRED.get(told["type"])
    if known is not None:
        return known.format_map(told.get("ctx", {}))
    text = str(told["msg"]).removeprefix("Input should be ")
    return text[:1].lower() + text[1:]


def _found(value: object) -> str:
    if value is None:
        return "none"
    return "a mapping" if isinstance(value, Mapping) else f"{value!r:.80}"
