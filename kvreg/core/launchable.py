"""Launch parameters that no launcher can run, whatever the compiler says: what an edited tuned file may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvreg.core.backends import Backend
from kvreg.core.devices import Device
from kvreg.core.requests import Request
from kvreg.core.variants import Variant

MOST = 2**31 - 1
"""Of any parameter: kernels and their grids count in int32, and torch's own counts hold no more than int64."""

MOST_THREADS = 1024
"""Threads of a block or work-group, on every card that kvreg knows."""

TILES = ("rows", "tile", "num_warps")
"""What Triton takes as powers of two only: extents of a block and warps."""


@dataclass(frozen=True)
class Launchable:
    """What a variant can be launched with for a request on a device; its backend is asked once something is tuned."""

    backend: Backend
    variant: Variant
    device: Device
    request: Request

    @cached_property
    def default(self) -> Mapping[str, int]:
        """The variant's own launch parameters, all of which its launcher reads."""
        return self.variant.default_config(self.device, self.request)

    @cached_property
    def values(self) -> Mapping[str, tuple[int, ...]]:
        """The values of each parameter that a tuner may write: the default's and those of the space."""
        space = self.backend.space(self.variant, self.device, self.request)
        return {
            name: (*space.get(name, ()), *([self.default[name]] if name in self.default else []))
            for name in {**self.default, **space}
        }

    def fault(self, config: Mapping[str, int]) -> str | None:
        """Return why the variant cannot be launched with `config`, as what is said of it; None where nothing tells."""
        missing = sorted(self.default.keys() - config.keys())
        if missing:
            return f"lacks {', '.join(missing)}, which {self.variant.id} is launched with"
        wrong = self.impossible(config)
        return f"has {wrong}" if wrong is not None else None

    def impossible(self, config: Mapping[str, int]) -> str | None:
        """Return what of a whole `config` cannot be launched and what could be; None where nothing tells.

        A name has to be the variant's or an option of the platform. Only a launcher of Triton has `num_warps`: its
        options hold what the platform takes, and its blocks what lies between the least and the largest value that a
        tuner writes, for a kernel is written for those. The plain torch one cuts its work at any number of rows.
        """
        for name, value in config.items():
            if (wrong := self._wrong(name, value)) is not None:
                return wrong
        if "num_warps" not in self.default:
            return None
        for name in TILES:
            if config.get(name, 1) & (config.get(name, 1) - 1):
                return f"{name} {config[name]} instead of a power of two"
        threads = config["num_warps"] * max(self.device.warp_sizes, default=32)
        if threads > MOST_THREADS:
            return f"num_warps {config['num_warps']} of {threads} threads instead of at most {MOST_THREADS}"
        return None

    def _wrong(self, name: str, value: int) -> str | None:
        if value < 1 <= self.default.get(name, 0):
            return f"{name} {value} instead of at least 1"
        if value > MOST:
            return f"{name} {value} instead of at most {MOST}"
        known = self.values.get(name, ())
        if not known or any(not self._refused(name, each) for each in known):
            faults = self._refused(name, value)
            return faults[0].partition("; ")[0] if faults else None
        if "num_warps" in self.default and not min(known) <= value <= max(known):
            span = f"{min(known)} to {max(known)}" if min(known) < max(known) else f"{min(known)}"
            return f"{name} {value} instead of {span}"
        return None

    def _refused(self, name: str, value: int) -> Sequence[str]:
        """What the platform's compiler says against an option; of a block's parameter always something."""
        return self.backend.validate_options({name: value})
