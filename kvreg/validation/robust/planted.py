"""A plug-in whose int4 decode is right in some configs and does in others what a config may do to a tuner.

    plant(folder, "cuda")           # an installed distribution, for whoever has `folder` on his path

The right ones are the platform's portable int4 decode, launched once, twice or three times over. Importing this loads
neither torch nor Triton.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.core import registry
from kvreg.core.backends import FolderBackend
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant, VariantId

if TYPE_CHECKING:
    from kvreg.runtime.launchers import AttendCall

MODULE = "kvreg_planted"
NAME = "planted-int4-decode"
KNOB = "planted"
"""The parameter that says what a config does; all others are the right decode's defaults."""


class Kind(IntEnum):
    """What a config does, in the order in which a search tries them: a right one stands behind each hazard."""

    THRICE = 0
    """The default: right, in three times the time that it takes."""
    UNBUILDABLE = 1
    """The compiler raises."""
    ZEROS = 2
    """Wrong, and faster than anything right: it fills the output and reads nothing."""
    OUT_OF_BOUNDS = 3
    """Reads where no memory is."""
    TWICE = 4
    FOR_EVER = 5
    """Never ends."""
    ONCE = 6
    """The fastest right one, tried last."""

    @property
    def word(self) -> str:
        """The kind as a report names it."""
        return self.name.lower()


LAUNCHES = {Kind.THRICE: 3, Kind.TWICE: 2, Kind.ONCE: 1}
"""How often a right config launches the decode."""

_HAZARDS = {"triton": "kvreg.validation.robust.hazard_kernels", "torch": "kvreg.validation.robust.host_hazards"}
"""By the family of the right variant: modules with a function for each hazard."""


class Launcher:
    """Decode that does what a config's `planted` says; `right` is the launcher of the right decode."""

    def __init__(self, right: str, family: str) -> None:
        self.right, self.family = right, family

    def splits(
        self,
        rows: int,
        kv_heads: int,
        group: int,
        max_context: int,
        compute_units: int | None,
        config: Mapping[str, int],
    ) -> int:
        """Return what the right decode does."""
        return int(self._right().splits(rows, kv_heads, group, max_context, compute_units, _others(config)))

    def chunk(self, config: Mapping[str, int]) -> int:
        """Return what the right decode does."""
        return int(self._right().chunk(_others(config)))

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Decode, or do what is planted."""
        kind = Kind(config[KNOB])
        for _ in range(LAUNCHES.get(kind, 0)):
            self._right()(call, _others(config))
        if kind is Kind.ZEROS:
            call.out.zero_()
        elif kind not in LAUNCHES:
            hazard = getattr(importlib.import_module(_HAZARDS[self.family]), kind.word)
            hazard(str(call.q.device))

    def _right(self) -> Any:
        from kvreg.runtime.launchers import load  # imports torch

        return load(self.right)


class Planted(FolderBackend):
    """Offers one variant for a platform, with a space of `kinds`."""

    name = "planted"

    def __init__(self, platform: str, folder: Path, kinds: Sequence[int]) -> None:
        super().__init__(folder)
        self.platform, self.kinds = platform, tuple(kinds)

    def variants(self) -> Sequence[Variant]:
        """Return the platform's portable int4 decode under another name, with the planted launcher."""
        right = portable(self.platform)
        if right is None:
            return ()

        def default(device: Device, request: Request) -> Mapping[str, int]:
            return {KNOB: int(Kind.THRICE), **right.default_config(device, request)}

        own = f"{MODULE}:LAUNCHER"
        return (
            replace(
                right,
                id=VariantId(NAME, 1),
                launcher=own,
                kernels=(own,),
                default_config=default,
                candidates=None,
                options=(),
            ),
        )

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the kinds."""
        return {KNOB: self.kinds}


def portable(platform: str) -> Variant | None:
    """Return the int4 decode of a platform that an interpreter can run, too; None where it offers none."""
    return next(
        (
            variant
            for backend in registry.backends()
            if backend.platform == platform and not isinstance(backend, Planted)
            for variant in backend.variants()
            if (variant.mode, variant.op) == (Mode.INT4_PER_TOKEN_HEAD, Op.DECODE)
            and variant.family in _HAZARDS
            and not variant.needs_card
        ),
        None,
    )


def plant(folder: Path, right: Variant, platform: str, kinds: Sequence[Kind]) -> None:
    """Lay the plug-in down as an installed distribution, for processes that have `folder` on their path."""
    texts = {
        f"{MODULE}.py": (
            "from pathlib import Path\n\n"
            "from kvreg.validation.robust.planted import Launcher, Planted\n\n"
            f"LAUNCHER = Launcher({right.launcher!r}, {right.family!r})\n"
            f"BACKEND = Planted({platform!r}, Path(__file__).parent, {tuple(map(int, kinds))})\n"
        ),
        "devices.yaml": f"schema: 1\nplatform: {platform}\ndevices: []\n",
        f"{MODULE}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n",
        f"{MODULE}-1.0.dist-info/entry_points.txt": f"[{registry.GROUP}]\nplanted = {MODULE}:BACKEND\n",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _others(config: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in config.items() if name != KNOB}
