"""The CUDA platform as a Backend. Importing it loads neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg.core.backends import Detected, FolderBackend
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.options import Option, faults
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant

OPTIONS = {
    "num_warps": Option(values=(1, 2, 4, 8, 16, 32)),  # a power of two, at most 1024 threads
    "num_stages": Option(least=1, most=8),
    "num_ctas": Option(values=(1,)),  # 2 needs sm_90 and fails in Triton's passes for attention there (3.9.0)
    "maxnreg": Option(least=24, most=255),  # ptxas takes no fewer than 24
    "enable_fp_fusion": Option(values=(True, False)),
    "launch_pdl": Option(values=(True, False)),
}
"""Launch options of CUDAOptions that Triton 3.6 to 3.9 share and that change a result's speed."""

KNOBS = {
    "num_warps": (1, 2, 4, 8),  # one warp keeps row reductions in registers; it won for int4 decode on an H200
    # Attention loads a tile's pages a stage before its rows: 3, 5 and 7 keep one, two and three tiles in flight.
    "num_stages": (1, 2, 3, 5, 7),
    "maxnreg": (168, 255),  # of int4 decode, where `spaces` has no grid of its own to go by; 255 is no bound
}
"""Options worth a search, for the variants whose launcher passes them on; decode of this package has its own."""

LEAST_TILE = 32
"""Keys of an int8 matrix instruction, which int4 decode of this package takes whole."""


class Cuda(FolderBackend):
    """NVIDIA cards from sm_70 on, through Triton."""

    name = platform = "cuda"

    def detect(self) -> Sequence[Detected]:
        """Return the cards that nvidia-smi lists."""
        from kvreg_cuda.detection import cards  # no start from a named device needs it

        return cards()

    def variants(self) -> Sequence[Variant]:
        """Return the portable Triton variants and those that only this platform has."""
        # Commands that only list devices do without.
        from kvreg_cuda.configs import candidates
        from kvreg_cuda.variants import own
        from kvreg_triton.defaults import FILE, Defaults
        from kvreg_triton.variants import shared

        return (*shared(self.platform, Defaults(candidates, self.device_file.with_name(FILE))), *own())

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the variant's block sizes, and of KNOBS those options that its launcher passes on."""
        from kvreg_cuda import spaces as own
        from kvreg_cuda.variants import LEAST_WRITE_VALUES
        from kvreg_triton import spaces
        from kvreg_triton.configs import padded

        if (found := own.knobs(variant, request)) is not None:
            return found
        # The software pipeline needs asynchronous copies, which sm_80 brought.
        deep = (device.capability or (0, 0)) >= (8, 0)
        knobs = KNOBS if deep else {**KNOBS, "num_stages": (1, 2)}
        sizes = spaces.blocks(variant, request)
        if variant.needs_card and variant.mode is Mode.INT4_PER_TOKEN_HEAD:
            if variant.op is Op.WRITE:
                least = LEAST_WRITE_VALUES // padded(request.head_size)
                sizes["rows"] = tuple(rows for rows in sizes["rows"] if rows >= least)
            else:
                sizes["tile"] = tuple(tile for tile in sizes["tile"] if tile >= LEAST_TILE)
        return sizes | spaces.options_of(variant, knobs)

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return why a config cannot win: threads, registers, shared memory of the pipeline, programs at once."""
        from kvreg_cuda import spaces as own
        from kvreg_triton import spaces

        shared = spaces.unfit(variant, device, request, config, stages_a_tile=own.STAGES_A_TILE)
        return shared or own.unfit(variant, device, request, config)

    def validate_options(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each option that Triton would drop or ptxas refuse."""
        return faults(options, OPTIONS)


BACKEND = Cuda(Path(__file__).parent)
