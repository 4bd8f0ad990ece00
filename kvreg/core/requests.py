"""What a caller asks for: one device, one or every mode, one head size, and the workload around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from kvreg.core.layouts import LayoutId, default
from kvreg.core.modes import Mode

Accuracy = Literal["exact", "fast"]

FEATURES = (
    "causal",
    "non_causal",
    "per_sequence_causal",
    "window",
    "softcap",
    "sinks",
    "alibi",
    "prefix_ranges",
    "chunked_lookback",
    "rswa",
    "qq_bias",
    "fp8_output",
    "diff_v",
    "multi_query_split",
)
"""Every feature word that a variant can declare; anything a variant does not declare is refused."""

DTYPES = ("bf16", "fp16", "fp32")
"""Model dtypes: of q, k, v and the output. fp32 is for the interpreter and the cpu backend."""


class Op(StrEnum):
    """What a variant does."""

    WRITE = "write"
    DECODE = "decode"
    PREFILL = "prefill"


def concerns(op: Op, feature: str) -> bool:
    """Return whether a feature changes what kernels of `op` compute.

    A write stores rows the same whoever reads them, but for rows of two widths; several query rows a sequence are
    split by decode alone.
    """
    if op is Op.WRITE:
        return feature == "diff_v"
    return feature != "multi_query_split" or op is Op.DECODE


@dataclass(frozen=True, slots=True)
class Request:
    """One question to `select`; every field that the caller left to its default is named in `assumed`."""

    device: str
    """Key of the resolved device."""
    mode: Mode | None
    """None asks for every mode."""
    head_size: int
    q_heads: int = 32
    kv_heads: int = 8
    page: int = 16
    """Token slots of a page."""
    dtype: str = "bf16"
    features: tuple[str, ...] = ("causal",)
    batch: int = 32
    context: int = 8192
    layout: LayoutId | None = None
    """None takes that of the mode."""
    accuracy: Accuracy = "exact"
    assumed: tuple[str, ...] = ()

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.q_heads // self.kv_heads

    @property
    def stored_layout(self) -> LayoutId:
        """The layout asked for, else that of the mode; of a request for every mode, that of `none`."""
        return self.layout or default(self.mode or Mode.NONE)

    def of(self, mode: Mode) -> Request:
        """Return the request for one mode alone, its layout filled in."""
        return replace(self, mode=mode, layout=self.layout or default(mode))
