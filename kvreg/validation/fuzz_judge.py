"""Judging a drawn call: the kernel, the plain torch backend and the fp64 reference over the same bytes.

Everything goes through the public calls, with a selection that asks for no evidence; see kvreg.validation.unproven.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from kvreg import oracle
from kvreg.bench.selections import select_from
from kvreg.core import layouts
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Selection
from kvreg.gate import Failure, GateReport, reference_of, run_attention, run_write
from kvreg.oracle import Reference
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import convert, dequantize
from kvreg.runtime.plan import plan
from kvreg.testing import Batch, build
from kvreg.testing.caches import TENSOR_SCALES, nan_byte
from kvreg.validation.fuzz_cases import LIMITS, Case, Limits, draw
from kvreg.validation.unproven import Place, fitting, place_of


def limits_of(place: Place) -> Limits:
    """Return how large the cases of a place may be."""
    return LIMITS["card" if place.is_card else place.name]


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one case."""

    failures: tuple[Failure, ...]
    variants: tuple[str, ...] = ()
    """Variants of write, decode and prefill that its selection had; a batch runs one of the last two."""
    worst: float | None = None
    """Largest e of the attention by the kernel; None where there was no result to measure."""


def judge_numbers(place: str, seed: int, first: int, count: int, modes: list[str]) -> list[dict[str, Any]]:
    """Judge `count` drawn cases from `first` on; returns {number, case, failures, variants, worst} of each.

    A task of a worker.
    """
    where = place_of(place)
    judged = []
    for number in range(first, first + count):
        case = draw(seed, number, limits_of(where), modes)
        found = judge(case, where)
        texts = [str(each) for each in found.failures]
        judged.append({"number": number, "case": asdict(case), **asdict(found), "failures": texts})
    return judged


def judge(case: Case, place: Place) -> Judged:
    """Return what became of one case; an exception on the way is a failure too."""
    try:
        return _judge(case, place)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Judged((Failure("exception", f"{at.name}:{at.lineno}", "a result", text),))


def _judge(case: Case, place: Place) -> Judged:
    batch = batch_of(case, place.torch_device)
    cache = cache_of(case, batch, place)
    written = _written(cache, batch)
    reference = reference_of(batch, cache.view)
    attended = _attended(case, cache, batch, _as_stored(reference, case, place))
    failures = [*written, *_of("kernel", attended.failures), *_read_back(cache, batch)]
    if place.resolution.device.platform != "cpu":
        here, host = batch.to("cpu"), place_of("cpu")
        plain = cache_of(case, here, host)
        failures += _written(plain, here, "plain torch")
        plain.buffer.copy_(cache.buffer)
        # Not called twice: a host of many cores sums its matrix products in another order now and then.
        again = _attended(case, plain, here, _moved(reference), repeats=0)
        failures += _of("plain torch over the kernel's bytes", again.failures)
    ops = cache.selection.result.ops
    worst = max((row.max_rel_error for row in attended.rows), default=None)
    return Judged(tuple(failures), tuple(ops[op].variant for op in Op), worst)


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
    if case.stray:
        rows = torch.ones((case.stray, *batch.q.shape[1:]), dtype=batch.q.dtype, device=batch.q.device)
        batch = replace(batch, q=torch.cat((batch.q, rows)))
    if case.narrow_slots:
        batch = replace(batch, slots=batch.slots.to(torch.int32))
    return batch.strided() if case.strided else batch


def cache_of(case: Case, batch: Batch, place: Place) -> KVCache:
    """Return a cache of the batch's size, every row of it NaN."""
    selection = selection_of(case, place, batch)
    mode = Mode(case.mode)
    scales = TENSOR_SCALES if mode is Mode.FP8_PER_TENSOR else None
    cache = KVCache.allocate(selection, batch.pages, device=place.torch_device, tensor_scales=scales)
    cache.buffer.fill_(nan_byte(mode, selection.result.format.fp8 or ""))
    return cache


def selection_of(case: Case, place: Place, batch: Batch) -> Selection:
    """Return a selection of variants that fit the case: of several for an op, the one that it prefers."""
    request = Request(
        device=place.resolution.device.key,
        mode=Mode(case.mode),
        head_size=case.head_size,
        q_heads=case.q_heads,
        kv_heads=case.kv_heads,
        page=case.page,
        dtype=case.dtype,
        features=batch.features.words,
        batch=max(1, len(batch.contexts)),
        context=max(1, *batch.contexts),
        layout=LayoutId.parse(case.layout),
    )
    winners = {op: fit[case.preference % len(fit)] for op, fit in fitting(request, place).items()}
    return select_from(winners, request, place.resolution)


def _written(cache: KVCache, batch: Batch, who: str = "kernel") -> list[Failure]:
    report = run_write(lambda: write(cache, batch.k, batch.v, batch.slots), batch, cache.view)
    return _of(who, report.failures)


def _of(who: str, failures: Iterable[Failure]) -> list[Failure]:
    return [replace(each, where=f"{who}, {each.where}") for each in failures]


def _attended(case: Case, cache: KVCache, batch: Batch, reference: Reference, *, repeats: int = 1) -> GateReport:
    made = plan(
        cache,
        batch.cu_q,
        batch.seq_lens,
        max_context=max(1, *batch.contexts),
        total_context=sum(batch.contexts) if case.total_known else None,
        batch_invariant=case.batch_invariant,
    )
    tensors = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made)

    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        result = attend(*tensors, out=out, scale=batch.scale, return_lse=True, **batch.features.fields())
        if lse is not None:
            lse.copy_(result[1])

    return run_attention(call, batch, cache.view, reference=reference, repeats=repeats)


def _as_stored(reference: Reference, case: Case, place: Place) -> Reference:
    """Return a reference as the place's store would leave it: Triton's interpreter cuts bf16 off, a card rounds.

    Such a cut alone is an e of 3.2e-3 on average and of 5.03e-3 at most, over what class exact allows on N(0,1);
    rounding costs 1.6e-3 and 2.3e-3 (348 rows of 40 values, Triton 3.6 and 3.9). No kernel can help it, so on the
    interpreter the reference is cut too: a right kernel, which computes in fp32 there, was then off by 2.3e-4 at most.
    The limits stay what they are.
    """
    if not (place.interpreted and case.dtype == "bf16"):
        return reference
    bits = reference.out.to(torch.float32).view(torch.int32) & ~0xFFFF
    return replace(reference, out=bits.view(torch.float32).to(torch.float64))


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
    other = next(name for name in layouts.known(cache.mode) if name != str(cache.layout))
    back = convert(convert(cache, other), cache.layout)
    if not torch.equal(back.buffer, cache.buffer):
        failures.append(Failure("convert", f"by {other} and back", "the same bytes", "others"))
    return failures


def _moved(reference: Reference) -> Reference:
    return Reference(reference.out.cpu(), reference.lse.cpu(), reference.spread.cpu())
