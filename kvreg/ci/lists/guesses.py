"""What the words of a job are taken for: a device, an arch or a platform. Always a guess, and listed as one.

Jobs name machines by pools (`mi355_dpx`, `h200_35gb`) and labels (`:intel: (BMG) Quantization`). A word counts when a
card or arch of that name is known, the narrowest first; vendor words come last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kvreg.ci.lists.exclusions import Place
from kvreg.core.devices import Device
from kvreg.core.expectations.predicates import When, parse

VENDORS = {"nvidia": "cuda", "cuda": "cuda", "amd": "rocm", "rocm": "rocm", "intel": "xpu", "xpu": "xpu", "cpu": "cpu"}
OTHER_MACHINES = ("hpu", "npu", "tpu")
"""Words of machines that no platform of kvreg is for; a vendor's word beside them means nothing."""
FAMILIES = {"xe2": ["bmg", "lnl"], "pvc": ["pvc"], "dg2": ["acm-g10"]}
"""Words for several archs, as Intel's lists use them."""
NAMED_OTHERWISE = {"spark": "gb10"}
"""Cards that jobs call by the name of the machine around them."""

_WORD = re.compile(r"[a-z0-9]+")
_MEMORY = re.compile(r"\d+gb")


@dataclass(frozen=True)
class Guesser:
    """Reads places out of labels; `devices` are all that are known."""

    devices: tuple[Device, ...]

    def place(self, label: str, hints: Iterable[str] = ()) -> Place:
        """Return the place of a job from its label and other words of it (pool, device tag); hints go first."""
        texts = [_WORD.findall(text.lower()) for text in (*hints, label)]
        for words in texts:
            found = self._card(words) or self._arch(words)
            if found is not None:
                return _guessed(label, *found)
        every = [word for words in texts for word in words]
        if not set(every) & set(OTHER_MACHINES):
            vendors = ["cpu"] if "cpu" in every else [word for word in every if word in VENDORS]
            for word in vendors[:1]:
                return _guessed(label, word, parse({"platform": VENDORS[word]}))
        return Place(label, None)

    def _card(self, words: list[str]) -> tuple[str, When] | None:
        """Return the word of a card, with its MIG profile's size where there is one, and what it stands for."""
        for word in words:
            named = NAMED_OTHERWISE.get(word, word)
            card = self._cards.get(named) or self._cards.get(f"{named}x")
            if card is None:
                continue
            size = next((other for other in words if _MEMORY.fullmatch(other)), None)
            sliced = [profile for profile in card.mig_profiles if size and profile.endswith(f".{size}")]
            shown = f"{word} {size}" if sliced else word
            return shown, parse({"device": [f"{card.key}/mig-{profile}" for profile in sliced] or card.key})
        return None

    def _arch(self, words: list[str]) -> tuple[str, When] | None:
        for word in words:
            if word in FAMILIES:
                return word, parse({"arch": FAMILIES[word]})
            if word in self._archs:
                return word, parse({"arch": word})
            of_name = {self._cards[key].arch for key in self._cards if re.fullmatch(rf"{word}-\d+gb", key)}
            if len(of_name) == 1:  # a100 comes in two sizes of one arch
                return word, parse({"arch": of_name.pop()})
        return None

    @cached_property
    def _cards(self) -> dict[str, Device]:
        return {each.key: each for each in self.devices if not each.is_arch and each.key != "cpu"}

    @cached_property
    def _archs(self) -> set[str]:
        return {each.arch for each in self.devices if each.key != "cpu"}


def _guessed(label: str, word: str, when: When) -> Place:
    return Place(label, when, f"{word} read as {when}")
