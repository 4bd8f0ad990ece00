"""The ROCm platform as a Backend. Importing it loads neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg.core.backends import Detected, FolderBackend
from kvreg.core.devices import Device
from kvreg.core.options import Option, faults
from kvreg.core.requests import Request
from kvreg.core.variants import Variant

OPTIONS = {
    "num_warps": Option(values=(1, 2, 4, 8, 16)),  # 32 waves of 64 compile on gfx942 and cannot be launched
    "num_stages": Option(least=1, most=4),
    "waves_per_eu": Option(least=0, most=8),
    "matrix_instr_nonkdim": Option(values=(0, 16, 32)),  # 4 and 8 compile, to FMA with hundreds of spills
    "kpack": Option(values=(1, 2)),
    "num_ctas": Option(values=(1,)),
    "allow_flush_denorm": Option(values=(True, False)),
    "enable_fp_fusion": Option(values=(True, False)),
}
"""Launch options of HIPOptions that Triton 3.6 to 3.9 share and that change a result's speed."""

_KPACK_ARCHS = ("gfx90a", "gfx942")  # Triton forces 1 on gfx950

KNOBS = {
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2),
    "waves_per_eu": (0, 1, 2, 4),
    "matrix_instr_nonkdim": (0, 16, 32),
    "kpack": (1, 2),
}
"""Options worth a search, for the variants whose launcher passes them on; the last two where the arch has them."""


class Rocm(FolderBackend):
    """AMD Instinct and Radeon cards from gfx90a on, through Triton."""

    name = platform = "rocm"

    def detect(self) -> Sequence[Detected]:
        """Return the cards of the driver's topology."""
        from kvreg_rocm.detection import cards  # no start from a named device needs it

        return cards()

    def variants(self) -> Sequence[Variant]:
        """Return the portable Triton variants and those that only this platform has."""
        # Commands that only list devices do without.
        from kvreg_rocm.configs import candidates
        from kvreg_rocm.variants import own
        from kvreg_triton.defaults import FILE, Defaults
        from kvreg_triton.variants import shared

        defaults = Defaults(candidates, self.device_file.with_name(FILE))
        return (*shared(self.platform, defaults), *own(defaults))

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the variant's block sizes, and of KNOBS those options that its launcher passes on."""
        from kvreg_triton import spaces

        knobs = dict(KNOBS)
        if not (variant.matrix_instruction and device.arch.startswith("gfx9")):
            del knobs["matrix_instr_nonkdim"]
        if device.arch not in _KPACK_ARCHS:
            del knobs["kpack"]
        return spaces.blocks(variant, request) | spaces.options_of(variant, knobs)

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return why a config cannot win: threads, registers, LDS, and a matrix shape that its tile cannot fill."""
        from kvreg_triton import spaces

        if config.get("matrix_instr_nonkdim") == 32 and min(config["rows"], config["tile"]) < 32:
            return f"a 32x32 matrix instruction for a tile of {config['rows']} x {config['tile']}"
        return spaces.unfit(variant, device, request, config)

    def validate_options(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each option that Triton would drop or turn into something that cannot run."""
        return faults(options, OPTIONS)


BACKEND = Rocm(Path(__file__).parent)
