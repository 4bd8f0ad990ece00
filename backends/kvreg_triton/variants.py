"""The variants that every Triton platform offers, and what they require. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvreg.core.devices import Device
from kvreg.core.formats import default_format
from kvreg.core.layouts import default
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Constraints, Variant, VariantId
from kvreg_triton.defaults import Defaults

_SHORT = {
    Mode.NONE: "none",
    Mode.FP8_PER_TENSOR: "fp8t",
    Mode.INT8_PER_TOKEN_HEAD: "int8",
    Mode.FP8_PER_TOKEN_HEAD: "fp8h",
    Mode.INT4_PER_TOKEN_HEAD: "int4",
}
_WRITERS = {Mode.NONE: "write_none", Mode.INT4_PER_TOKEN_HEAD: "write_int4"}
_READERS = {Mode.INT4_PER_TOKEN_HEAD: "attend_int4"}
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


def _default_config(mode: Mode, op: Op, defaults: Defaults) -> Callable[[Device, Request], Mapping[str, int]]:
    def choose(device: Device, request: Request) -> Mapping[str, int]:
        return defaults.default(mode, op, device, request)

    return choose


def _candidates(mode: Mode, op: Op, defaults: Defaults) -> Callable[[Device, Request], Sequence[Mapping[str, int]]]:
    def in_order(device: Device, request: Request) -> Sequence[Mapping[str, int]]:
        return defaults.candidates_of(mode, op, device, request)

    return in_order


def _stored(mode: Mode) -> Callable[[Device, int], Format]:
    def describe(device: Device, head_size: int) -> Format:
        return default_format(mode, device, head_size, default(mode), "bf16")

    return describe


def _module(mode: Mode, op: Op) -> str:
    if op is Op.WRITE:
        return f"kvreg_triton.{_WRITERS.get(mode, 'write_8bit')}"
    return f"kvreg_triton.{_READERS.get(mode, 'attend_rows')}"


def _kernels(mode: Mode, op: Op) -> tuple[str, ...]:
    """Kernel roots and the launcher's class; the hash follows what they call."""
    roots = {Op.WRITE: ("write",), Op.DECODE: ("attend", "reduce"), Op.PREFILL: ("attend",)}[op]
    return (*(f"{_module(mode, op)}:{root}" for root in roots), f"kvreg_triton.launch:{op.value.capitalize()}")


def _constraints(mode: Mode, op: Op) -> Constraints:
    """A write knows nothing of features, so none can stand in its way; prefill does not split."""
    features = tuple(word for word in FEATURES if op is not Op.PREFILL or word != "multi_query_split")
    return Constraints(
        features=FEATURES if op is Op.WRITE else features,
        needs_fp8="e4m3" if mode.is_fp8 else None,
    )


def shared(platform: str, defaults: Defaults | None = None) -> tuple[Variant, ...]:
    """Return the portable variants as `platform` (cuda, rocm or xpu) offers them, with its launch parameters."""
    own = defaults or Defaults()
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
            default_config=_default_config(mode, op, own),
            candidates=_candidates(mode, op, own),
            constraints=_constraints(mode, op),
            matrix_instruction=op is not Op.WRITE,
            # What a search tries; launchers pass any other option on too, but a vendor's own would multiply each space
            # by up to 24. A write has no loop that stages could pipeline.
            options=("num_warps",) if op is Op.WRITE else ("num_warps", "num_stages"),
        )
        for mode, short in _SHORT.items()
        for op in Op
    )
