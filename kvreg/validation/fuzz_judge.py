"""Judging a drawn call: the kernel, the plain torch backend and the fp64 reference over the same bytes.

Everything goes through the public calls, with a selection made by hand: what no evidence supports yet is exactly what
is to be tried.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from kvreg import oracle
from kvreg.core import layouts, registry, resolve
from kvreg.core.devices import Resolution
from kvreg.core.errors import DeviceUnavailable, wrong
from kvreg.core.evidence import Evidence
from kvreg.core.formats import variant_format
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.core.variants import Variant
from kvreg.gate import Failure, reference_of, run_attention, run_write
from kvreg.oracle import Reference
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import convert, dequantize
from kvreg.runtime.plan import plan
from kvreg.testing import Batch, build
from kvreg.testing.caches import TENSOR_SCALES, nan_byte
from kvreg.validation.fuzz_cases import LIMITS, Case, Limits, draw


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run: the device whose variants are tried, torch's name of it, and how large cases may be."""

    resolution: Resolution
    torch_device: str
    limits: Limits


def place_of(name: str) -> Place:
    """Return the place that a word stands for: `cpu`, `interpreter`, or a torch device such as `cuda`.

    Raises DeviceUnavailable where there is no such card. `interpreter` needs TRITON_INTERPRET=1 before Triton loads.
    """
    if name == "cpu":
        return Place(resolve.resolve("cpu"), "cpu", LIMITS["cpu"])
    if name == "interpreter":
        return Place(resolve.resolve("h200"), "cpu", LIMITS["interpreter"])
    place = Place(resolve.default_device(), name, LIMITS["card"])
    module = getattr(torch, name.partition(":")[0], None)
    if not (module and hasattr(module, "is_available") and module.is_available()):
        raise DeviceUnavailable(
            wrong(f"device {name}", required="a card that torch sees", found="none", remedy="run kvreg doctor")
        )
    return place


def judge_numbers(place: str, seed: int, first: int, count: int, modes: list[str]) -> list[dict[str, Any]]:
    """Judge `count` drawn cases from `first` on; returns {number, case, failures} of each. A task of a worker."""
    where = place_of(place)
    judged = []
    for number in range(first, first + count):
        case = draw(seed, number, where.limits, modes)
        judged.append({"number": number, "case": asdict(case), "failures": [str(each) for each in judge(case, where)]})
    return judged


def judge(case: Case, place: Place) -> list[Failure]:
    """Return everything that is wrong with one case; an exception on the way is a failure too."""
    try:
        return _judge(case, place)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return [Failure("exception", f"{at.name}:{at.lineno}", "a result", text)]


def _judge(case: Case, place: Place) -> list[Failure]:
    batch = batch_of(case, place.torch_device)
    cache = cache_of(case, batch, place.resolution, place.torch_device)
    failures = _written(cache, batch)
    reference = reference_of(batch, cache.view)
    failures += _attended(case, cache, batch, reference, "kernel")
    failures += _read_back(cache, batch)
    if place.resolution.device.platform == "cpu":
        return failures
    here, moved = batch.to("cpu"), _moved(reference)
    plain = cache_of(case, here, resolve.resolve("cpu"), "cpu")
    failures += _written(plain, here, "plain torch")
    plain.buffer.copy_(cache.buffer)
    return failures + _attended(case, plain, here, moved, "plain torch over the kernel's bytes")


def batch_of(case: Case, device: str) -> Batch:
    """Return the batch that a case describes."""
    batch = build(
        case.kind,
        head_size=case.head_size,
        group=case.group,
        kv_heads=case.kv_heads,
        page=case.page,
        dtype=case.dtype,
        contexts=case.contexts,
        inputs=(case.input,),
        seeds=(case.seed,),
        layout=LayoutId.parse(case.layout),
        device=device,
        features=case.features,
        window=case.window,
    )
    if case.stray and batch.contexts[-1] == 0:  # behind other sequences nothing is specified
        rows = torch.ones((case.stray, *batch.q.shape[1:]), dtype=batch.q.dtype, device=batch.q.device)
        batch = replace(batch, q=torch.cat((batch.q, rows)))
    if case.narrow_slots:
        batch = replace(batch, slots=batch.slots.to(torch.int32))
    return batch.strided() if case.strided else batch


def cache_of(case: Case, batch: Batch, resolution: Resolution, device: str) -> KVCache:
    """Return a cache of the batch's size, every row of it NaN."""
    selection = selection_of(case, resolution, batch)
    mode = Mode(case.mode)
    scales = TENSOR_SCALES if mode is Mode.FP8_PER_TENSOR else None
    cache = KVCache.allocate(selection, batch.pages, device=device, tensor_scales=scales)
    cache.buffer.fill_(nan_byte(mode, selection.result.format.fp8 or ""))
    return cache


def selection_of(case: Case, resolution: Resolution, batch: Batch) -> Selection:
    """Return what select would answer if every variant had evidence for everything."""
    device, mode, layout = resolution.device, Mode(case.mode), LayoutId.parse(case.layout)
    request = Request(
        device=device.key,
        mode=mode,
        head_size=case.head_size,
        q_heads=case.q_heads,
        kv_heads=case.kv_heads,
        page=case.page,
        dtype=case.dtype,
        features=batch.features.words,
        batch=max(1, len(batch.contexts)),
        context=max(1, *batch.contexts),
        layout=layout,
    )
    winners = _variants(device.platform, mode)
    ops = {op: _chosen(variant, request, resolution) for op, variant in winners.items()}
    stored = variant_format(winners[Op.WRITE], device, case.head_size, layout, case.dtype)
    result = ModeResult(
        mode=mode,
        verdict="selected",
        layout=layout,
        format=stored,
        bytes_per_token_head=mode.bytes_per_token_head(case.head_size, case.dtype),
        compression=mode.compression(case.head_size, case.dtype),
        ops=ops,
    )
    return Selection(resolution, request, (result,))


def _variants(platform: str, mode: Mode) -> Mapping[Op, Variant]:
    """Return the first variant of each op that a platform offers for a mode."""
    found: dict[Op, Variant] = {}
    for backend in registry.backends():
        if backend.platform == platform:
            for variant in backend.variants():
                if variant.mode is mode:
                    found.setdefault(variant.op, variant)
    return found


def _chosen(variant: Variant, request: Request, resolution: Resolution) -> Chosen:
    evidence = Evidence(
        trace="none",
        variant=str(variant.id),
        op=variant.op,
        mode=variant.mode,
        head_size=request.head_size,
        device=request.device,
        arch=resolution.device.arch,
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
    config = dict(variant.default_config(resolution.device, request))
    return Chosen(str(variant.id), variant.launcher, variant.accuracy, config, "default", evidence)


def _written(cache: KVCache, batch: Batch, who: str = "kernel") -> list[Failure]:
    report = run_write(lambda: write(cache, batch.k, batch.v, batch.slots), batch, cache.view)
    return [replace(each, where=f"{who}, {each.where}") for each in report.failures]


def _attended(case: Case, cache: KVCache, batch: Batch, reference: Reference, who: str) -> list[Failure]:
    made = plan(
        cache,
        batch.cu_q,
        batch.seq_lens,
        max_context=max(1, *batch.contexts),
        batch_invariant=case.batch_invariant,
    )
    tensors = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made)

    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        result = attend(*tensors, out=out, scale=batch.scale, return_lse=True, **batch.features.fields())
        if lse is not None:
            lse.copy_(result[1])

    report = run_attention(call, batch, cache.view, reference=reference, repeats=1)
    return [replace(each, where=f"{who}, {each.where}") for each in report.failures]


def _read_back(cache: KVCache, batch: Batch) -> list[Failure]:
    """Compare dequantize with the oracle's, and the bytes of a conversion there and back with what they were."""
    failures = []
    slots = batch.slots[batch.slots >= 0]
    pairs = zip(dequantize(cache, slots), oracle.dequantize(cache.view, slots), strict=True)
    for side, (found, right) in zip("KV", pairs, strict=True):
        if not right.numel():
            continue
        worst = float((found - right).abs().amax() / right.abs().amax().clamp(min=1e-30))
        if not worst <= 1e-5:
            failures.append(Failure("dequantize", side, "within 1e-5 of the oracle's largest value", f"{worst:.3g}"))
    other = next(name for name in layouts.known() if name != str(cache.layout))
    back = convert(convert(cache, other), cache.layout)
    if not torch.equal(back.buffer, cache.buffer):
        failures.append(Failure("convert", f"by {other} and back", "the same bytes", "others"))
    return failures


def _moved(reference: Reference) -> Reference:
    return Reference(reference.out.cpu(), reference.lse.cpu(), reference.spread.cpu())
