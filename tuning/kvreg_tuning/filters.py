"""Some of the tuned entries: what was asked for, and how far an entry is from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from kvreg.core.modes import Mode
from kvreg.core.registry import backends
from kvreg.core.requests import Op
from kvreg_tuning.stock import Item

NEAREST = 3
"""Entries that an empty answer names."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What an entry must be; None takes any."""

    device: str | None = None
    """A device key."""
    mode: Mode | None = None
    op: Op | None = None
    head_size: int | None = None

    def differing(self, item: Item) -> tuple[str, ...]:
        """Return each field in which an entry is not what was asked for, with what it is: `head_size 128`."""
        entry = item.entry
        found = {"device": item.place.device, "mode": entry.mode, "op": entry.op, "head_size": entry.head_size}
        return tuple(f"{name} {found[name]}" for name, asked in self._asked().items() if asked != found[name])

    def nearest(self, items: Iterable[Item]) -> tuple[Item, ...]:
        """Return the entries with the fewest differences, of those the ones with the nearest head sizes."""
        return tuple(sorted(items, key=self._distance)[:NEAREST])

    @property
    def command(self) -> str:
        """What would tune what was asked for; of a head size that nothing serves, `select`, which says so."""
        asked = self._asked()
        verb = "tune"
        if self.head_size is not None and not _is_served(self.head_size):
            verb = "select"
            asked.pop("op", None)  # which it answers for all of them
        return f"kvreg {verb}" + "".join(f" --{name.replace('_', '-')} {value}" for name, value in asked.items())

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self._asked().items()) or "anything"

    def _asked(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def _distance(self, item: Item) -> tuple[int, int]:
        off = 0 if self.head_size is None else abs(item.entry.head_size - self.head_size)
        return len(self.differing(item)), off


def _is_served(head_size: int) -> bool:
    every = (variant for backend in backends() for variant in backend.variants())
    return any(variant.constraints.takes_head_size(head_size) for variant in every)
