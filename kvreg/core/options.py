"""Checking launch options by name and value: Triton drops a name that it does not know without a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvreg.core.near import suggestion


@dataclass(frozen=True, slots=True)
class Option:
    """What one option may hold: one of `values`, or an integer between `least` and `most`."""

    values: tuple[Any, ...] = ()
    least: int = 0
    most: int = 0

    def __str__(self) -> str:
        if self.values:
            return f"one of {', '.join(str(value) for value in self.values)}"
        return f"an integer from {self.least} to {self.most}"

    def takes(self, value: Any) -> bool:
        """Return whether `value` is legal; True and 1 are different values."""
        if self.values:
            return any(value == one and type(value) is type(one) for one in self.values)
        return type(value) is int and self.least <= value <= self.most


def faults(options: Mapping[str, Any], known: Mapping[str, Option]) -> tuple[str, ...]:
    """Return one line for each option that the compiler would drop or refuse."""
    lines = []
    for name, value in options.items():
        if name not in known:
            lines.append(
                f"{name}: required an option of this platform, found an unknown name; {suggestion(name, known)}"
            )
        elif not known[name].takes(value):
            lines.append(f"{name}: required {known[name]}, found {value!r}; take a listed value")
    return tuple(lines)
