"""The variants that only NVIDIA cards have; the portable ones stand beside them. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core.devices import Device
from kvreg.core.formats import default_format
from kvreg.core.layouts import default
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId
from kvreg_triton.configs import padded
from kvreg_triton.variants import FEATURES

ROWS = 8
"""Query rows of a program, which half of a matrix instruction holds; kvreg_cuda.decode_int4.LANES."""


def _config(device: Device, request: Request) -> Mapping[str, int]:
    """One warp up to heads of 128, so that row reductions stay in registers; the best of a small grid on an H200.

    More stages than 3 win only where tiles are small (docs/performance.md).
    """
    width = padded(request.head_size)
    config = {"rows": ROWS, "tile": 64, "num_warps": 1, "num_stages": 3, "programs_per_unit": 8, "chunk": 512}
    if width <= 64:
        return config | {"num_stages": 5, "maxnreg": 168}
    if width <= 128:
        return config
    return config | {"tile": 64 if width <= 256 else 32, "num_warps": 2, "programs_per_unit": 4}


def _stored(device: Device, head_size: int) -> Format:
    return default_format(Mode.INT4_PER_TOKEN_HEAD, device, head_size, default(Mode.INT4_PER_TOKEN_HEAD), "bf16")


def own() -> tuple[Variant, ...]:
    """Return the variants of this package.

    They do not split several query tokens over rows (multi_query_split): 8 rows hold few, and the cache would be read
    again for each. Matrix instructions of int8 with 16 rows came with sm_80. On a card inline PTX masks the nibbles.
    """
    return (
        Variant(
            id=VariantId("cuda-int4-decode", 1),
            op=Op.DECODE,
            mode=Mode.INT4_PER_TOKEN_HEAD,
            family="triton",
            accuracy="exact",
            launcher="kvreg_cuda.decode_int4:DECODE",
            kernels=(
                "kvreg_cuda.decode_int4:attend",
                "kvreg_cuda.decode_int4:reduce",
                "kvreg_triton.launch:Decode",
            ),
            format=_stored,
            default_config=_config,
            constraints=Constraints(
                features=tuple(word for word in FEATURES if word != "multi_query_split"),
                group_max=ROWS,
                min_capability=(8, 0),
            ),
            needs_card=True,
            options=("num_warps", "num_stages", "maxnreg"),
        ),
    )
