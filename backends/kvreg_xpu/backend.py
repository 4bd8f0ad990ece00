"""The Intel XPU platform as a Backend. Importing it loads neither torch nor Triton."""

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
    "num_warps": Option(values=(1, 2, 4, 8, 16, 32, 64)),  # at most max_num_sub_groups
    "num_stages": Option(least=1, most=8),  # prefetch distance of 2D block loads
    "threads_per_warp": Option(values=(16, 32)),  # triton-xpu 3.3; with DPAS the compiler makes it 16
    "grf_mode": Option(values=("default", "small", "large", "auto")),  # 3.3 ignores any other word, "256" as well
    "generate_native_code": Option(values=(True, False)),
    "enable_fp_fusion": Option(values=(True, False)),
}
"""Launch options of XPUOptions in triton-xpu 3.3.0b1."""

_LARGE_GRF_MOST_WARPS = 32

KNOBS = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": (1, 2, 3),
}
"""Options worth a search. grf_mode is a word and not in a config, whose values are whole numbers: the compiler's own
`default` builds for 128 registers and, where that spills, again for 256. The sub-group size follows from the dot."""


class Xpu(FolderBackend):
    """Intel Arc and Data Center GPU Max cards, through triton-xpu."""

    name = platform = "xpu"

    def detect(self) -> Sequence[Detected]:
        """Return the Intel cards of the direct rendering manager."""
        from kvreg_xpu.detection import cards  # no start from a named device needs it

        return cards()

    def variants(self) -> Sequence[Variant]:
        """Return the portable Triton variants."""
        from kvreg_triton.variants import shared  # commands that only list devices do without

        return shared(self.platform)

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the variant's block sizes, and of KNOBS those options that its launcher passes on."""
        from kvreg_triton import spaces

        return spaces.blocks(variant, request) | spaces.options_of(variant, KNOBS)

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return why a config cannot win: threads, or shared local memory. Stages take none here: they prefetch."""
        from kvreg_triton import spaces

        return spaces.unfit(variant, device, request, {**config, "num_stages": 1})

    def validate_options(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each option that triton-xpu would drop or refuse."""
        lines = list(faults(options, OPTIONS))
        warps = options.get("num_warps")
        if options.get("grf_mode") == "large" and isinstance(warps, int) and warps > _LARGE_GRF_MOST_WARPS:
            lines.append(
                f"num_warps: required at most {_LARGE_GRF_MOST_WARPS} with grf_mode=large, found {warps};"
                " take fewer warps or grf_mode=default"
            )
        return tuple(lines)


BACKEND = Xpu(Path(__file__).parent)
