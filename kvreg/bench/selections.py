"""What select would answer, made by hand: here is where kernels are tried that no evidence supports yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import Device, Resolution
from kvreg.core.evidence import Evidence
from kvreg.core.formats import variant_format
from kvreg.core.layouts import default
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.core.variants import Variant


def selection_of(
    request: Request,
    device: Device,
    offered: Sequence[Variant],
    name: str | None = None,
    config: Mapping[str, int] | None = None,
) -> Selection:
    """Return a selection of `request.mode` whose evidence is blank.

    Each op has the first of its variants in `offered`; where `name` is the id of one, that one, and with `config` as
    its launch parameters. The others have their own.
    """
    mode = request.mode
    assert mode is not None
    layout = request.layout or default(mode)
    of_mode = [each for each in offered if each.mode is mode]
    ordered = sorted(of_mode, key=lambda each: str(each.id) != name)
    first = {op: next(each for each in ordered if each.op is op) for op in Op}
    chosen = {
        op: _chosen(variant, device, request, config if str(variant.id) == name else None)
        for op, variant in first.items()
    }
    result = ModeResult(
        mode=mode,
        verdict="selected",
        layout=layout,
        format=variant_format(first[Op.DECODE], device, request.head_size, layout, request.dtype),
        bytes_per_token_head=mode.bytes_per_token_head(request.head_size, request.dtype),
        compression=mode.compression(request.head_size, request.dtype),
        ops=chosen,
    )
    return Selection(Resolution(device, "key"), request, (result,))


def _chosen(variant: Variant, device: Device, request: Request, config: Mapping[str, int] | None) -> Chosen:
    blank = Evidence(
        trace="",
        variant=str(variant.id),
        op=variant.op,
        mode=variant.mode.value,
        head_size=request.head_size,
        device=device.key,
        arch=device.arch,
        kernel_hash="",
        numerics="none",
        build="none",
        speed="none",
        accuracy=variant.accuracy,
        max_rel_error=None,
        cosine=None,
        seeds=0,
        layouts=(),
    )
    own = dict(variant.default_config(device, request))
    taken = own if config is None else dict(config)
    return Chosen(str(variant.id), variant.launcher, variant.accuracy, taken, "default", blank)
