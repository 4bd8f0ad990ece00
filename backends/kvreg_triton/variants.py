"""The variants that every Triton platform offers, and what they require. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvreg.core.devices import Device
from kvreg.core.modes import Format, Mode, rotation_block
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId
from kvreg_triton import configs

_SHORT = {Mode.NONE: "none", Mode.INT4_PER_TOKEN_HEAD: "int4"}
_DEFAULTS: dict[Op, Callable[[Mode, Request], Mapping[str, int]]] = {
    Op.WRITE: configs.write,
    Op.DECODE: configs.decode,
    Op.PREFILL: configs.prefill,
}


def _default_config(mode: Mode, op: Op) -> Callable[[Device, Request], Mapping[str, int]]:
    def choose(device: Device, request: Request) -> Mapping[str, int]:
        return _DEFAULTS[op](mode, request)

    return choose


def _stored(mode: Mode) -> Callable[[Device, int], Format]:
    def describe(device: Device, head_size: int) -> Format:
        if mode is Mode.INT4_PER_TOKEN_HEAD:
            return Format("uint8", None, 15.0, rotation_block(head_size), "", "even_low")
        return Format("bfloat16", None, None, None, "", None)

    return describe


def _module(mode: Mode, op: Op) -> str:
    return f"kvreg_triton.{'write' if op is Op.WRITE else 'attend'}_{_SHORT[mode]}"


def _kernels(mode: Mode, op: Op) -> tuple[str, ...]:
    """Kernel roots and the launcher's class; the hash follows what they call."""
    roots = {Op.WRITE: ("write",), Op.DECODE: ("decode", "reduce"), Op.PREFILL: ("prefill",)}[op]
    return (*(f"{_module(mode, op)}:{root}" for root in roots), f"kvreg_triton.launch:{op.value.capitalize()}")


def shared(platform: str) -> tuple[Variant, ...]:
    """Return the portable variants as `platform` (cuda, rocm or xpu) offers them."""
    return tuple(
        Variant(
            id=VariantId(f"triton-{short}-{op}", 1),
            op=op,
            mode=mode,
            family="triton",
            accuracy="exact",
            launcher=f"{_module(mode, op)}:{op.value.upper()}",
            kernels=_kernels(mode, op),
            format=_stored(mode),
            default_config=_default_config(mode, op),
            constraints=Constraints(),
            matrix_instruction=op is not Op.WRITE,
        )
        for mode, short in _SHORT.items()
        for op in Op
    )
