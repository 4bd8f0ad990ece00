"""What a trial does inside a worker: compile, gate, bench, race. Every function takes and returns plain JSON values.

The batches, their fp64 references and the benchmark's buffers are made once a subject and bucket and kept, so that a
trial costs its own work only. The gate poisons the output before every call: what one config leaves behind can never
complete what another one forgets.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from kvreg.core import resolve
from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant
from kvreg.gate import GateReport, WriteReport, reference_of, run_attention, run_write
from kvreg.oracle import Reference
from kvreg.runtime.launchers import AttendCall, CacheView, Features, load
from kvreg.testing import Batch, CacheBytes, Kind, build
from kvreg_tuning import resources, timing
from kvreg_tuning.benchmark import Bench, Workload, split_plan, splits_of
from kvreg_tuning.effort import LEAST_ROUNDS, LEAST_SAMPLES
from kvreg_tuning.subjects import Subject, kernel_text, offered

Plain = Mapping[str, Any]

CONTEXTS = {"cpu": (1, 17, 64, 300), "card": (1, 17, 64, 1024, 8192)}
"""Contexts of the gate: one token, just past a page, whole pages, a last tile that is not full, and on a card lengths
that the splits of long buckets cut."""

INPUTS = ("normal", "channel30")
MOST_FAILURES = 3
KV_HEADS = 2
"""Of the gate's batch: enough to show a wrong head."""


def launches(subject: Plain, bucket: str, configs: Sequence[Plain]) -> list[str]:
    """Return what each config comes down to in a bucket, in one line: equal lines are one launch."""
    of, variant, device = _of(subject)
    if of.op != Op.DECODE:
        return [_line(config, 1) for config in configs]
    launcher, workload = load(variant.launcher), _workload(of, Bucket.parse(bucket))
    return [_line(config, splits_of(launcher, workload, device, config)) for config in configs]


def compile_trial(subject: Plain, buckets: Sequence[str], config: Plain, place: str) -> dict[str, Any]:
    """Compile every kernel that a config launches in these buckets and return its resources.

    A backend without Triton is launched once on a small batch instead: whatever it builds, it builds then.
    """
    _use(place)
    of, variant, _ = _of(subject)
    splits = sorted({_splits(of, Bucket.parse(bucket), config) for bucket in buckets})
    launch = [_attempt(of, place, config, parts) for parts in splits]
    if variant.family != "triton":
        for each in launch:
            each()
        return {"kernels": 0, "resources": {}}
    from kvreg_triton.launch import compile_only

    with compile_only() as compiled:
        for each in launch:
            each()
    found = [resources.of_kernel(kernel) for kernel in compiled]
    return {"kernels": len(compiled), "resources": resources.worst(found)}


def gate_trial(subject: Plain, bucket: str, config: Plain, place: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Judge a config as the bucket launches it, poisoned, twice for the bits.

    Returns {ok, failures: [text], e, cosine, seeds, bits}; `bits` is a digest of the output, equal for configs whose
    results are equal bit for bit. For a write, e is the worst error in quantization steps and there is no cosine.
    """
    _use(place)
    of, variant, _ = _of(subject)
    report, bits = _judged(of, variant, Bucket.parse(bucket), config, place, tuple(seeds))
    return {
        "ok": report.ok,
        "failures": [str(each) for each in report.failures[:MOST_FAILURES]],
        **_worst(report),
        "seeds": len(seeds),
        "bits": bits,
    }


def bench_trial(
    subject: Plain, bucket: str, config: Plain, place: str, samples: int, seconds: float, slow_us: float | None
) -> dict[str, Any]:
    """Time a config; one slower than `slow_us` in its first fifth of the samples is given no more.

    It ends after `seconds` whatever samples it has. Returns {us, spread, samples, method, slow}. The gate is no part
    of it.
    """
    _use(place)
    bench = _bench(Subject.from_json(subject), bucket, place)
    sample, method = timing.sampler(bench.calls(config), torch.device(place).type)
    end = time.monotonic() + seconds
    taken = [sample() for _ in range(max(LEAST_SAMPLES, samples // 5))]
    slow = slow_us is not None and timing.summary(taken, method).us > slow_us
    while not slow and len(taken) < samples and time.monotonic() < end:
        taken.append(sample())
    found = timing.summary(taken, method)
    return {"us": found.us, "spread": found.spread, "samples": found.samples, "method": method, "slow": slow}


def race(
    subject: Plain,
    bucket: str,
    configs: Sequence[Plain],
    place: str,
    rounds: int,
    seconds: float,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Judge configs once more, with other seeds, and time them by turns: every round takes one sample of each.

    Returns {failures: [[text], ...], samples_us: [[us of each round], ...], method, clock_mhz}, all in the order of
    `configs`; one that fails the gate is not timed and has no samples. The order within a round turns about, so that
    none always follows the same neighbour. It ends after `seconds` whatever rounds it has.
    """
    _use(place)
    of, variant, _ = _of(subject)
    reports = [_judged(of, variant, Bucket.parse(bucket), config, place, tuple(seeds))[0] for config in configs]
    failures = [[str(each) for each in report.failures[:MOST_FAILURES]] for report in reports]
    bench = _bench(of, bucket, place)
    running = [place_ for place_, found in enumerate(failures) if not found]
    samplers = {each: timing.sampler(bench.calls(configs[each]), torch.device(place).type) for each in running}
    taken: list[list[float]] = [[] for _ in configs]
    end = time.monotonic() + seconds
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.monotonic() >= end:
            break
        turned = running[number % len(running) :] + running[: number % len(running)] if running else []
        for each in turned if number % 2 else reversed(turned):
            taken[each].append(samplers[each][0]())
    method = next((method for _, method in samplers.values()), "host")
    clock = timing.sm_clock() if torch.device(place).type == "cuda" else None
    return {"failures": failures, "samples_us": taken, "method": method, "clock_mhz": clock}


def _of(subject: Plain) -> tuple[Subject, Variant, Device]:
    of = Subject.from_json(subject)
    device = resolve.resolve(of.device).device
    return of, _variants(device.platform)[of.variant], device


@lru_cache
def _variants(platform: str) -> dict[str, Variant]:
    return {name: variant for name, (_, variant) in offered(platform).items()}


def _workload(of: Subject, bucket: Bucket) -> Workload:
    layout = LayoutId.parse(of.layout)
    return Workload(bucket, of.group, of.kv_heads, of.head_size, of.page, of.dtype, layout, of.features)


@lru_cache(maxsize=1)
def _bench(of: Subject, bucket: str, place: str) -> Bench:
    _, variant, device = _of(of.to_json())
    return Bench(variant, _workload(of, Bucket.parse(bucket)), device, place)


def _line(config: Plain, splits: int) -> str:
    return kernel_text(config) + (f" splits={splits}" if splits > 1 else "")


def _splits(of: Subject, bucket: Bucket, config: Plain) -> int:
    if of.op != Op.DECODE:
        return 1
    _, variant, device = _of(of.to_json())
    return splits_of(load(variant.launcher), _workload(of, bucket), device, config)


@lru_cache(maxsize=4)
def _batch(of: Subject, place: str, contexts: tuple[int, ...], seeds: tuple[int, ...]) -> Batch:
    kind: Kind = "prefill" if of.op == Op.PREFILL else "decode"
    return build(
        kind,
        head_size=of.head_size,
        group=1 if of.op == Op.WRITE else of.group,
        kv_heads=KV_HEADS,
        page=of.page,
        dtype=of.dtype,
        contexts=contexts,
        inputs=INPUTS,
        seeds=seeds,
        layout=LayoutId.parse(of.layout),
        device=place,
        features=of.features,
    )


@lru_cache(maxsize=4)
def _filled(
    of: Subject, place: str, contexts: tuple[int, ...], seeds: tuple[int, ...]
) -> tuple[CacheBytes, Reference | None]:
    """Return the cache as the oracle's writer leaves it and what attention over it must be; none for a write."""
    batch = _batch(of, place, contexts, seeds)
    _, _, device = _of(of.to_json())
    mode, fp8 = Mode(of.mode), fp8_type(device)
    if of.op == Op.WRITE:
        return batch.cache(mode, fp8=fp8), None
    cache = batch.filled(mode, fp8=fp8)
    return cache, reference_of(batch, cache)


def _launch(
    of: Subject, variant: Variant, batch: Batch, cache: CacheBytes, config: Plain, splits: int
) -> Callable[..., None]:
    """Return the call of a config: (out, lse) for attention, () for a write."""
    launcher, view = load(variant.launcher), CacheView(**cache.fields())
    if of.op == Op.WRITE:
        return lambda: launcher(view, batch.k, batch.v, batch.slots, config)
    split = split_plan(*batch.q.shape, splits, 0, batch.q.device)
    asked = Features(**batch.features.fields())

    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        launcher(
            AttendCall(
                batch.q, view, batch.page_table, batch.seq_lens, batch.cu_q, out, lse, batch.scale, split, asked
            ),
            config,
        )

    return call


def _attempt(of: Subject, place: str, config: Plain, splits: int) -> Callable[[], None]:
    """Return one launch of a config on two short sequences."""
    _, variant, _ = _of(of.to_json())
    batch = _batch(of, place, (1, 17), (0,))
    cache, _ = _filled(of, place, (1, 17), (0,))
    call = _launch(of, variant, batch, cache, config, splits)
    if of.op == Op.WRITE:
        return call
    out = torch.empty_like(batch.q)
    return lambda: call(out, torch.empty(batch.q.shape[:2], dtype=torch.float32, device=batch.q.device))


def _judged(
    of: Subject, variant: Variant, bucket: Bucket, config: Plain, place: str, seeds: tuple[int, ...]
) -> tuple[GateReport | WriteReport, str]:
    """Return the gate's report and a digest of the bits that the first call left."""
    contexts = CONTEXTS["cpu" if torch.device(place).type == "cpu" else "card"]
    batch = _batch(of, place, contexts, seeds)
    cache, reference = _filled(of, place, contexts, seeds)
    call = _launch(of, variant, batch, cache, config, _splits(of, bucket, config))
    if of.op == Op.WRITE:
        return run_write(call, batch, cache), _digest(cache.storage)
    bits: list[str] = []

    def noted(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        call(out, lse)
        bits.append(_digest(out))

    report = run_attention(noted, batch, cache, accuracy=variant.accuracy, reference=reference, repeats=1)
    return report, bits[0]


def _digest(x: torch.Tensor) -> str:
    return hashlib.sha256(x.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


def _worst(report: GateReport | WriteReport) -> dict[str, Any]:
    if isinstance(report, WriteReport):
        steps = max((row.max_step_error for row in report.rows), default=0.0)
        return {"e": float(f"{steps:.6g}"), "cosine": None}
    e = max((row.max_rel_error for row in report.rows), default=0.0)
    cosine = min((row.min_cosine for row in report.rows), default=1.0)
    return {"e": float(f"{e:.6g}"), "cosine": float(f"{cosine:.6f}")}


def _use(place: str) -> None:
    """Make a torch device the current one of its kind: kernels without a tensor of their own go there."""
    found = torch.device(place)
    if found.type == "cuda":
        torch.cuda.set_device(found)
    elif found.type == "xpu":
        torch.xpu.set_device(found)
