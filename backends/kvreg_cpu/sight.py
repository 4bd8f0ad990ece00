"""Which keys the queries of one sequence see; the words are those of kvreg.runtime.launchers.Features."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvreg.runtime.launchers import AttendCall


@dataclass(frozen=True, slots=True)
class Sight:
    """The mask of one sequence of `length` keys, by positions."""

    length: int
    causal: bool
    window: int | None
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, call: AttendCall, sequence: int, length: int) -> Sight:
        """Return what a call's features mean for one of its sequences."""
        features = call.features
        causal = features.causal if isinstance(features.causal, bool) else bool(features.causal[sequence])
        given = () if features.prefix_ranges is None else features.prefix_ranges[sequence].tolist()
        ranges = tuple((max(begin, 0), min(end, length)) for begin, end in given)
        return cls(length, causal, features.window, tuple(each for each in ranges if each[0] < each[1]))

    def reach(self, first: int, last: int) -> tuple[int, int]:
        """Return [low, high), outside of which no query at positions `first` to `last` sees a key."""
        low = 0 if self.window is None else max(0, first - self.window + 1)
        high = self.length if self.window is None else min(self.length, last + self.window)
        if self.causal:
            high = min(high, last + 1)
        for begin, end in self.ranges:
            if begin <= last and first < end:
                low, high = min(low, begin), max(high, end)
        return low, max(low, high)

    def seen(self, positions: torch.Tensor, low: int, high: int) -> torch.Tensor:
        """Return (rows, high - low) bool: whether the query at positions[i] sees key low + j."""
        ahead = torch.arange(low, high) - positions[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if self.causal:
            seen &= ahead <= 0
        if self.window is not None:
            seen &= ahead.abs() < self.window
        for begin, end in self.ranges:
            rows = (positions >= begin) & (positions < end)
            if bool(rows.any()):  # then [low, high) holds the range
                seen[rows, begin - low : end - low] = True
        return seen
