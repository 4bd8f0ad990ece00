"""Which releases of the optional packages kvreg is tried with; pyproject.toml states the same ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Supported:
    """Versions from `least` on, and below `below` where one is known not to do."""

    least: str
    below: str | None = None

    def __str__(self) -> str:
        return f">={self.least}" + (f",<{self.below}" if self.below else "")

    def holds(self, version: str) -> bool:
        """Return whether `version` lies in the range; local parts (2.11.0+cu128) do not count."""
        return not self.older(version) and (self.below is None or _number(version) < _number(self.below))

    def older(self, version: str) -> bool:
        """Return whether `version` comes before the range."""
        return _number(version) < _number(self.least)


PYTHON = Supported("3.11")
PACKAGES = {
    "torch": Supported("2.11"),
    "triton": Supported("3.6", "3.10"),
    "numpy": Supported("1.26"),
}
"""The extra `kernels`. Triton 3.6 is the oldest release that the kernels are tried with, 3.9 the newest."""

TRITON_XPU = Supported("3.3.0", "3.4")
"""Of the distribution triton-xpu, which overwrites triton's files and needs an environment of its own."""


def _number(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
