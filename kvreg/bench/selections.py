"""What select would answer, made by hand: here is where kernels are tried that no evidence supports yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

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
    ordered = sorted((each for each in offered if each.mode is request.mode), key=lambda each: str(each.id) != name)
    first = {op: next(each for each in ordered if each.op is op) for op in Op}
    own = {} if name is None or config is None else {name: config}
    return select_from(first, request, Resolution(device, "key"), own)


def select_from(
    winners: Mapping[Op, Variant],
    request: Request,
    resolution: Resolution,
    configs: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Selection:
    """Return the selection in which `winners` won, its evidence blank; `request` is for one mode.

    `configs`: launch parameters by variant id; the others have their own.
    """
    device, mode = resolution.device, winners[Op.WRITE].mode
    layout = request.layout or default(mode)
    result = ModeResult(
        mode=mode,
        verdict="selected",
        layout=layout,
        format=variant_format(winners[Op.WRITE], device, request.head_size, layout, request.dtype),
        bytes_per_token_head=mode.bytes_per_token_head(request.head_size, request.dtype),
        compression=mode.compression(request.head_size, request.dtype),
        ops={op: _chosen(each, device, request, configs.get(str(each.id))) for op, each in winners.items()},
    )
    return Selection(resolution, request, (result,))


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
