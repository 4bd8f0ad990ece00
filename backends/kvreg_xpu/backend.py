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
from kvreg_xpu.differences import GRF_MOST_WARPS, GRF_WORDS, PLAIN_SUB_GROUP, SUB_GROUP, grf_mode

COMPILED_BY = "3.3"
"""The release whose words the options are; kvreg_xpu.toolchain pins it."""

OPTIONS = {
    "num_warps": Option(values=(1, 2, 4, 8, 16, 32, 64)),
    "num_stages": Option(least=1, most=8),
    "threads_per_warp": Option(values=(SUB_GROUP, PLAIN_SUB_GROUP)),
    "grf_mode": Option(values=("default", "auto", *GRF_WORDS[COMPILED_BY].values())),
    "generate_native_code": Option(values=(True, False)),
    "enable_fp_fusion": Option(values=(True, False)),
}
"""Launch options of XPUOptions in triton-xpu 3.3.0b1; kvreg_xpu.differences says what they mean."""


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
        # Commands that only list devices do without.
        from kvreg_triton.defaults import FILE, Defaults
        from kvreg_triton.variants import shared
        from kvreg_xpu.configs import candidates

        return shared(self.platform, Defaults(candidates, self.device_file.with_name(FILE)))

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
        warps, mode = options.get("num_warps"), options.get("grf_mode")
        later = {word: registers for registers, word in GRF_WORDS["3.8"].items()}
        if mode in later:
            word = grf_mode(later[mode], COMPILED_BY)
            lines = [
                line if not line.startswith("grf_mode:") else f"{line}: {word} is its name here" for line in lines
            ]
        if mode == grf_mode(256, COMPILED_BY) and isinstance(warps, int) and warps > GRF_MOST_WARPS:
            lines.append(
                f"num_warps: required at most {GRF_MOST_WARPS} with grf_mode={mode}, found {warps};"
                " take fewer warps or grf_mode=default"
            )
        return tuple(lines)


BACKEND = Xpu(Path(__file__).parent)
