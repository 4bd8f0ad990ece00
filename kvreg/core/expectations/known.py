"""Which platforms, archs, devices and variants there are: what the names in a predicate can mean.

Two predicates hold together only where some card satisfies both: `platform: cuda` and `device: mi300x` never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kvreg.core.devices import Device
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.predicates import When, Where, covers


@dataclass(frozen=True)
class Known:
    """The cards and variants that a list can speak of."""

    devices: tuple[Device, ...]
    variants: tuple[str, ...] = ()

    @classmethod
    def installed(cls) -> Known:
        """Return what the installed backends know."""
        from kvreg.core.index import Index

        index = Index.open()
        variants = {str(variant.id) for backend in index.backends for variant in backend.variants()}
        return cls(index.devices(), tuple(sorted(variants)))

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Word -> the names that it can have."""
        return {
            "platform": tuple(dict.fromkeys(each.platform for each in self.devices)),
            "arch": tuple(dict.fromkeys(each.arch for each in self.devices)),
            "device": tuple(each.key for each in self.devices),
        }

    def unknown(self, entry: Expectation) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield (field, name, known names) for each name of an entry that nothing has."""
        for word, names in entry.when.names.items():
            for name in names.words:
                known = self.names[word]
                card, _, profile = name.partition("/")
                if not (name in known or (word == "device" and profile and self._has_slice(card, profile))):
                    yield f"when.{word}", name, known
        for field, variants in (("invalidates", entry.invalidates), ("touches", entry.touches)):
            for variant in variants:
                if variant not in self.variants:
                    yield field, variant, self.variants

    def meet(self, one: When, other: When) -> bool:
        """Return whether two predicates can hold at one place."""
        return one.bounds_meet(other) and any(
            _admits(one, card) and _admits(other, card) for card in self._cards(one, other)
        )

    def contains(self, one: When, other: When) -> bool:
        """Return whether `one` holds wherever `other` does."""
        if not one.bounds_contain(other):
            return False
        cards = [card for card in self._cards(one, other) if _admits(other, card)]
        return bool(cards) and all(_admits(one, card) for card in cards)

    def may_hold(self, when: When, where: Where) -> bool:
        """Return whether a predicate can hold at a place that may be known in part: some card there satisfies it."""
        return when.may_hold(where) and any(
            _admits(when, card) and _lies_at(card, where) for card in self._cards(when)
        )

    def exists(self, where: Where) -> bool:
        """Return whether there is a card of this platform, arch and device."""
        return any(_lies_at(card, where) for card in self._rows)

    def place(self, device: Device) -> Where:
        """Return a card as a place; what an arch alone leaves open stays open."""
        return Where(device.platform, device.arch, None if device.is_arch else device.key)

    @cached_property
    def _rows(self) -> tuple[dict[str, str], ...]:
        return tuple({"platform": each.platform, "arch": each.arch, "device": each.key} for each in self.devices)

    def _cards(self, *whens: When) -> Iterable[dict[str, str]]:
        """Return every card, and the slices that the predicates name."""
        named = {
            name for when in whens if "device" in when.names for name in when.names["device"].words if "/" in name
        }
        if not named:
            return self._rows
        slices = [{**row, "device": name} for row in self._rows for name in named if covers(row["device"], name)]
        return (*self._rows, *slices)

    def _has_slice(self, card: str, profile: str) -> bool:
        found = next((each for each in self.devices if each.key == card), None)
        return found is not None and profile.removeprefix("mig-") in found.mig_profiles


def _lies_at(card: dict[str, str], where: Where) -> bool:
    """Return whether a card is the one of a place, or that of its slice, as far as the place is known."""
    for word, name in card.items():
        wanted = getattr(where, word)
        if wanted is not None and not (covers(wanted, name) or (word == "device" and covers(name, wanted))):
            return False
    return True


def _admits(when: When, card: dict[str, str]) -> bool:
    return all(names.admits(card[word]) for word, names in when.names.items())
