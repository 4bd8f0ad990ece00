"""What runs inside a worker: judging one cell, compiling its kernels, saying what machine this is.

Every function takes and returns plain JSON values; see kvreg_tuning.worker.
"""

from __future__ import annotations

import os
import platform as host
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kvreg.core import resolve
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.modes import Mode
from kvreg.gate import Failure, run_attention, run_write
from kvreg.testing.batches import PREFILL_QUERIES
from kvreg.validation import calls
from kvreg.validation.cells import Cell
from kvreg_tuning import resources

MOST_FAILURES = 12
"""Failures of one cell that are kept; the first ones name the place, thousands more would not help."""


def device_of(key: str) -> Device:
    """Return a device by its key."""
    return resolve.resolve(key).device


def probe(place: str) -> dict[str, Any]:
    """Return name, versions and L2 bytes of what torch finds at `place` (cpu, cuda:0, ...), after using it once.

    `alike` counts the cards that are here where all have that name; 1 where they differ.

    Raises whatever torch raises where there is no such device.
    """
    found = torch.device(place)
    card: str | None = None
    l2 = memory = None
    alike = 1
    if found.type == "cuda":
        torch.cuda.set_device(found)
        properties = torch.cuda.get_device_properties(found)
        card, l2, memory = properties.name, getattr(properties, "L2_cache_size", None), properties.total_memory
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        alike = len(names) if set(names) == {card} else 1
    elif found.type == "xpu":
        torch.xpu.set_device(found)
        card = torch.xpu.get_device_properties(found).name
    else:
        card = host.processor() or host.machine()
    total = float(torch.ones(1024, device=found).sum())
    if total != 1024.0:
        raise RuntimeError(f"{place}: the sum of 1024 ones is {total}")
    try:
        import triton  # absent where only the cpu backend runs
    except ImportError:
        version = None
    else:
        version = str(triton.__version__)
    return {
        "card": card,
        "alike": alike,
        "torch": str(torch.__version__),
        "triton": version,
        "python": host.python_version(),
        "l2_bytes": l2,
        "memory_bytes": memory,
        "interpreted": os.environ.get("TRITON_INTERPRET") == "1",
    }


def compile_cell(cell: Mapping[str, Any], device: str, place: str) -> dict[str, Any]:
    """Compile every kernel that judging the cell launches, launching none; returns their number."""
    from kvreg_triton.launch import compile_only

    of, on = Cell.from_json(cell), device_of(device)
    use(place)
    with compile_only() as compiled:
        _launch(_small(of, on), on, place)
    return {"kernels": len(compiled)}


def _small(cell: Cell, device: Device) -> Cell:
    """Return a cell of few tokens that launches the same specializations: compiling needs no rows.

    The longest context is kept, so that decode is split as in the cell itself. Two sequences are enough, but for
    launchers of equal shares, whose kernels know how many there are: of these each stays, cut to the tokens that may
    all have a query row.
    """
    contexts: tuple[int, ...] = (1, max(cell.contexts))
    if calls.has_shares(cell, device):
        every = cell.contexts * (len(cell.inputs) * len(cell.seeds))
        longest = every.index(max(every))
        contexts = tuple(c if i == longest else min(c, PREFILL_QUERIES) for i, c in enumerate(every))
    return replace(cell, contexts=contexts, inputs=("normal",), seeds=(0,))


def _launch(cell: Cell, device: Device, place: str) -> None:
    """Make each call of a cell once, into plain buffers."""
    variant = calls.variant_of(cell.variant, device.platform)
    batch = calls.batch_of(cell, place)
    cache = batch.cache(Mode(cell.mode), fp8=fp8_type(device))
    if cell.kind == "write":
        for _, _, call in calls.write_calls(cell, batch, cache, variant, device):
            call()
        return
    out = torch.empty_like(batch.q)
    lse = torch.empty(batch.q.shape[:2], dtype=torch.float32, device=batch.q.device)
    for cut in calls.attend_cuts(cell, batch, cache, variant, device, all_forms=True):
        cut.call(out, lse if cut.with_lse else None)


def judge(cell: Mapping[str, Any], device: str, place: str, accuracy: str = "exact") -> dict[str, Any]:
    """Run one cell under the gate.

    Returns {ok, failures: [text], rows: [{input, context, seed, ...numbers}], resources}. The numbers of a row are the
    worst over the cell's launches; `e` may be infinite where a result was not finite.
    """
    use(place)
    of, on = Cell.from_json(cell), device_of(device)
    found = _judge_write(of, on, place) if of.kind == "write" else _judge_attention(of, on, place, accuracy)
    return {**found, "resources": _resources(of, on, place)}


def _judge_attention(cell: Cell, device: Device, place: str, accuracy: str) -> dict[str, Any]:
    variant = calls.variant_of(cell.variant, device.platform)
    batch = calls.batch_of(cell, place)
    cache, reference = calls.filled(cell, batch, device)
    failures: list[str] = []
    worst: dict[int, dict[str, Any]] = {}
    for cut in calls.attend_cuts(cell, batch, cache, variant, device):
        report = run_attention(
            cut.call,
            batch,
            cache,
            accuracy=variant.accuracy,
            reference=reference,
            with_lse=cut.with_lse,
            repeats=cut.repeats,
        )
        failures += _named(cut.name, report.failures)
        for row in report.rows:
            if row.label is None or row.label.context == 0:
                continue
            known = worst.setdefault(row.index, {**calls.label_row(row.label), "e": 0.0, "cosine": 1.0, "lse": 0.0})
            known["e"] = max(known["e"], row.max_rel_error)
            known["cosine"] = min(known["cosine"], row.min_cosine)
            known["lse"] = max(known["lse"], row.max_lse_error or 0.0)
    return {"ok": not failures, "failures": failures[:MOST_FAILURES], "rows": _rounded(worst.values())}


def _judge_write(cell: Cell, device: Device, place: str) -> dict[str, Any]:
    variant = calls.variant_of(cell.variant, device.platform)
    batch = calls.batch_of(cell, place)
    cache = batch.cache(Mode(cell.mode), fp8=fp8_type(device))
    failures: list[str] = []
    worst: dict[int, dict[str, Any]] = {}
    first: torch.Tensor | None = None
    for name, of, call in calls.write_calls(cell, batch, cache, variant, device):
        report = run_write(call, of, cache)
        failures += _named(name, report.failures)
        if first is None:
            first = cache.storage.clone()
        elif not torch.equal(first, cache.storage):
            differing = int((first != cache.storage).sum())
            failures.append(f"{name}: required the bytes of the dense write, found {differing} others")
        for row in report.rows:
            if row.label is None or row.label.context == 0:
                continue
            known = worst.setdefault(
                row.index, {**calls.label_row(row.label), "steps": 0.0, "scale": 0.0, "zero": 0.0, "bits": 0}
            )
            known["steps"] = max(known["steps"], row.max_step_error)
            known["scale"] = max(known["scale"], row.max_scale_error)
            known["zero"] = max(known["zero"], row.max_zero_error)
            known["bits"] = max(known["bits"], row.wrong_values)
    return {"ok": not failures, "failures": failures[:MOST_FAILURES], "rows": _rounded(worst.values())}


def _rounded(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with numbers of six digits: half the bytes of a log, and no digit that means anything lost."""
    return [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def _named(name: str, failures: Iterable[Failure]) -> list[str]:
    return [f"{name}: {failure}" for failure in failures]


def _resources(cell: Cell, device: Device, place: str) -> dict[str, Any]:
    """Return what the cell's compiled kernels take; nothing where nothing is compiled."""
    if torch.device(place).type == "cpu" or calls.variant_of(cell.variant, device.platform).family != "triton":
        return {}
    from kvreg_triton.launch import compile_only

    with compile_only() as compiled:
        _launch(_small(cell, device), device, place)
    return resources.worst([resources.of_kernel(kernel) for kernel in compiled])


def use(place: str) -> None:
    """Make a torch device the current one of its kind: kernels without a tensor of their own go there."""
    found = torch.device(place)
    if found.type == "cuda":
        torch.cuda.set_device(found)
    elif found.type == "xpu":
        torch.xpu.set_device(found)
