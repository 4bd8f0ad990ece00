"""The variants that only AMD cards have; the portable ones stand beside them. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core import layouts
from kvreg.core.devices import Device
from kvreg.core.formats import default_format
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId
from kvreg_triton.defaults import Defaults
from kvreg_triton.variants import FEATURES

MFMA_ARCHS = ("gfx90a", "gfx942", "gfx950")


def own(defaults: Defaults) -> tuple[Variant, ...]:
    """Return the variants of this package.

    Their launch parameters are those that were chosen for the portable variant: the two share one kernel.
    """
    mode, op = Mode.INT4_PER_TOKEN_HEAD, Op.PREFILL

    def stored(device: Device, head_size: int) -> Format:
        return default_format(mode, device, head_size, layouts.default(mode), "bf16")

    def default(device: Device, request: Request) -> Mapping[str, int]:
        return defaults.default(mode, op, device, request)

    return (
        Variant(
            id=VariantId("rocm-int4-prefill", 1),
            op=op,
            mode=mode,
            family="triton",
            accuracy="exact",
            launcher="kvreg_rocm.prefill_int4:PREFILL",
            kernels=(
                "kvreg_triton.attend_int4:attend",
                "kvreg_rocm.prefill_int4:WithOptions",
                "kvreg_rocm.prefill_int4:PREFILL",
                "kvreg_triton.launch:Prefill",
            ),
            format=stored,
            default_config=default,
            constraints=Constraints(
                features=tuple(word for word in FEATURES if word != "multi_query_split"),
                archs=MFMA_ARCHS,
            ),
        ),
    )
