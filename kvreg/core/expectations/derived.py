"""What select knows of kvreg's own list, without YAML: the entries that name variants, as the index holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.core.devices import Device
from kvreg.core.expectations.predicates import When, Where, parse, written


@dataclass(frozen=True, slots=True)
class Touching:
    """An expectation that concerns variants."""

    id: str
    test: str
    when: When
    expect: str
    """xfail, flaky or skip."""
    issue: str
    review_by: str | None
    """YYYY-MM-DD."""
    invalidates: tuple[str, ...]
    touches: tuple[str, ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Touching:
        """Return the entry that `records` wrote."""
        return cls(
            **{
                **record,
                "when": parse(record["when"]),
                "invalidates": tuple(record["invalidates"]),
                "touches": tuple(record["touches"]),
            }
        )

    def may_hold(self, device: Device, versions: Mapping[str, str]) -> bool:
        """Return whether it cannot be excluded on a card, of which driver and free memory are never known here."""
        return self.when.may_hold(
            Where(
                platform=device.platform,
                arch=device.arch,
                device=None if device.is_arch else device.key,
                triton=versions.get("triton"),
                torch=versions.get("torch"),
            )
        )


def records(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a list that name variants, as JSON holds them; raises BadFile for a bad list."""
    from kvreg.core.expectations.files import read  # YAML and pydantic: only a rebuild pays for them

    return [
        {
            "id": entry.id,
            "test": entry.test,
            "when": written(entry.when),
            "expect": entry.expect.value,
            "issue": entry.issue,
            "review_by": str(entry.review_by) if entry.review_by is not None else None,
            "invalidates": list(entry.invalidates),
            "touches": list(entry.touches),
        }
        for entry in read(path)
        if entry.invalidates or entry.touches
    ]


def concerning(
    variants: Iterable[str], entries: Iterable[Touching], device: Device, versions: Mapping[str, str]
) -> tuple[Touching, ...]:
    """Return the entries that may hold on a card and name one of these variants."""
    named = set(variants)
    return tuple(
        each
        for each in entries
        if named.intersection((*each.invalidates, *each.touches)) and each.may_hold(device, versions)
    )
