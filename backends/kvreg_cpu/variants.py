"""The variants of the plain torch backend, and what they require. Imports no torch: select reads this on every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvreg.core.devices import Device
from kvreg.core.modes import Format, Mode, rotation_block
from kvreg.core.requests import DTYPES, Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId

INT4_QMAX = 15.0
"""Largest unsigned 4-bit code."""

_SHORT = {Mode.NONE: "none", Mode.INT4_PER_TOKEN_HEAD: "int4"}

_SCORES = 1 << 22
"""Score elements (float32) that one step of attend holds: 16 MiB, the last-level cache of a common server."""

_ROW_VALUES = 1 << 20
"""Values (float32) of K or V that one step of write holds: 4 MiB."""


def _unquantized(device: Device, head_size: int) -> Format:
    """Rows in the model's dtype; bfloat16 stands for it."""
    return Format("bfloat16", None, None, None, "", None)


def _int4(device: Device, head_size: int) -> Format:
    return Format("uint8", None, INT4_QMAX, rotation_block(head_size), "", "even_low")


def _write_config(device: Device, request: Request) -> Mapping[str, int]:
    """Token rows that one step quantizes."""
    return {"rows": max(1, _ROW_VALUES // (request.kv_heads * request.head_size))}


def _attend_config(device: Device, request: Request) -> Mapping[str, int]:
    """Score elements of one step; the batch has no part in it."""
    return {"scores": _SCORES}


_FORMATS: dict[Mode, Callable[[Device, int], Format]] = {
    Mode.NONE: _unquantized,
    Mode.INT4_PER_TOKEN_HEAD: _int4,
}


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
        format=_FORMATS[mode],
        default_config=_write_config if op is Op.WRITE else _attend_config,
        constraints=Constraints(dtypes=DTYPES),
        matrix_instruction=False,
    )


def variants() -> tuple[Variant, ...]:
    """Return write, decode and prefill for each mode; decode and prefill share one implementation."""
    return tuple(_variant(mode, op) for mode in _SHORT for op in Op)
