"""The hazards of `hazard_kernels` in plain Python, for the device cpu, whose kernels are torch's."""

from __future__ import annotations

import ctypes
import time


def out_of_bounds(place: str) -> None:
    """Read where no memory is."""
    ctypes.string_at(0)


def for_ever(place: str) -> None:
    """Wait for what never comes."""
    while True:
        time.sleep(0.01)


def unbuildable(place: str) -> None:
    """Raise, as what cannot be built does."""
    raise RuntimeError("planted: this cannot be built")
