"""The variants of the plain torch backend, and what they require. Imports no torch: select reads this on every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvreg.core.devices import Device
from kvreg.core.formats import default_format
from kvreg.core.layouts import default
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import DTYPES, Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId

_SHORT = {
    Mode.NONE: "none",
    Mode.FP8_PER_TENSOR: "fp8t",
    Mode.INT8_PER_TOKEN_HEAD: "int8",
    Mode.FP8_PER_TOKEN_HEAD: "fp8h",
    Mode.INT4_PER_TOKEN_HEAD: "int4",
}

FEATURES = (
    "causal",
    "non_causal",
    "per_sequence_causal",
    "window",
    "softcap",
    "sinks",
    "alibi",
    "prefix_ranges",
    "multi_query_split",
)
"""Features of every mode: decode and prefill share one implementation, and a write knows nothing of them."""

_SCORES = 1 << 22
"""Score elements (float32) that one step of attend holds: 16 MiB, the last-level cache of a common server."""

_ROW_VALUES = 1 << 20
"""Values (float32) of K or V that one step of write holds: 4 MiB."""


def _write_config(device: Device, request: Request) -> Mapping[str, int]:
    """Token rows that one step quantizes."""
    return {"rows": max(1, _ROW_VALUES // (request.kv_heads * request.head_size))}


def _attend_config(device: Device, request: Request) -> Mapping[str, int]:
    """Score elements of one step; the batch has no part in it."""
    return {"scores": _SCORES}


def _stored(mode: Mode) -> Callable[[Device, int], Format]:
    """Rows of `none` are in the model's dtype; bfloat16 stands for it."""

    def describe(device: Device, head_size: int) -> Format:
        return replace(default_format(mode, device, head_size, default(mode), "bf16"), layout_id="")

    return describe


def _variant(mode: Mode, op: Op) -> Variant:
    short = _SHORT[mode]
    module = f"kvreg_cpu.{'write' if op is Op.WRITE else 'attend'}"
    launcher = f"{module}:{'write' if op is Op.WRITE else 'attend'}_{short}"
    return Variant(
        id=VariantId(f"torch-{short}-{op}", 1),
        op=op,
        mode=mode,
        family="torch",
        accuracy="exact",
        launcher=launcher,
        kernels=(launcher,),
        format=_stored(mode),
        default_config=_write_config if op is Op.WRITE else _attend_config,
        constraints=Constraints(dtypes=DTYPES, features=FEATURES),
        matrix_instruction=False,
    )


def variants() -> tuple[Variant, ...]:
    """Return write, decode and prefill for each mode; decode and prefill share one implementation."""
    return tuple(_variant(mode, op) for mode in _SHORT for op in Op)
