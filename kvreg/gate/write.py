"""Judging a write: stored rows against what their format makes of the input, other bytes against what they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kvreg.core.modes import Mode
from kvreg.gate import limits
from kvreg.gate.reports import Failure, RotationReport, WriteReport, WriteResult, place
from kvreg.gate.stored import errors_of
from kvreg.oracle import Cache, rotate
from kvreg.testing import Label

_INTEGERS = {2: torch.int16, 4: torch.int32}
_CPU_BUDGET = 64 << 20
_CARD_BUDGET = 2 << 30

Snapshot = Mapping[int, torch.Tensor]
"""The bytes of every buffer that a cache's views lie in, by the buffer's address."""


def _views(cache: Cache) -> list[torch.Tensor]:
    """Return the planes, 8-bit ones as uint8: not every operation takes fp8."""
    planes = [x for x in (cache.k, cache.v, cache.k_scale, cache.v_scale) if x is not None]
    return [x.view(torch.uint8) if x.dtype.itemsize == 1 else x for x in planes]


def buffers(cache: Cache) -> dict[int, torch.Tensor]:
    """Return every whole buffer that the cache's views lie in as (bytes,) uint8, by address. No copy."""
    found = {}
    for view in _views(cache):
        storage = view.untyped_storage()
        if storage.data_ptr() not in found:
            whole = torch.empty(0, dtype=torch.uint8, device=view.device)
            found[storage.data_ptr()] = whole.set_(storage, 0, (storage.nbytes(),), (1,))
    return found


def snapshot(cache: Cache) -> Snapshot:
    """Return a copy of every byte of the cache's buffers, to be taken before the write."""
    return {address: whole.clone() for address, whole in buffers(cache).items()}


def _untouched(cache: Cache, before: Snapshot, page: torch.Tensor, slot: torch.Tensor) -> list[Failure]:
    """Compare all bytes outside the written rows. `before` is used up: the written rows are copied into it."""
    for view in _views(cache):
        storage = before[view.untyped_storage().data_ptr()].untyped_storage()
        old = torch.empty(0, dtype=view.dtype, device=view.device)
        old.set_(storage, view.storage_offset(), view.shape, view.stride())
        old[page, slot] = view[page, slot]
    failures = []
    for address, now in buffers(cache).items():
        if not torch.equal(now, before[address]):
            changed = torch.nonzero(now != before[address]).squeeze(1)
            found = f"{changed.numel()} bytes changed, the first at {int(changed[0])} of {now.numel()}"
            failures.append(Failure("untouched", "bytes outside the written rows", "no change", found))
    return failures


def _sides(cache: Cache, k: torch.Tensor, v: torch.Tensor) -> tuple[tuple[str, torch.Tensor, torch.Tensor], ...]:
    return (("k", k, cache.k), ("v", v, cache.v))


def check_write(
    cache: Cache,
    before: Snapshot,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    *,
    row_sequence: torch.Tensor | None = None,
    labels: Sequence[Label] = (),
) -> WriteReport:
    """Judge a cache after one write of `k`, `v` (rows, kv_heads, head_size) to `slots` (at most rows,).

    `before`: what `snapshot` gave before the write; it is used up. `row_sequence`: (rows,) the sequence of each row,
    by which the results are gathered; without it all rows are one sequence. Slots below 0 and rows without a slot
    must leave no trace.
    """
    written = torch.nonzero(slots >= 0).squeeze(1)
    index = slots[written].to(torch.int64)
    page, slot = index // cache.page, index % cache.page
    owner = torch.zeros_like(index) if row_sequence is None else row_sequence[written]
    n = len(labels) or (int(owner.max()) + 1 if len(owner) else 1)
    worst = torch.zeros((n, 5), dtype=torch.float64, device=k.device)
    budget = _CPU_BUDGET if k.device.type == "cpu" else _CARD_BUDGET
    step = max(1, budget // (10 * 8 * cache.kv_heads * cache.head_size))
    for first in range(0, len(written), step):
        part = slice(first, first + step)
        rows, at, into = written[part], (page[part], slot[part]), owner[part]
        for side, source, data in _sides(cache, k, v):
            if cache.mode is Mode.NONE:
                as_bits = _INTEGERS[data.dtype.itemsize]
                stored, due = data[at].view(as_bits), source[rows].to(data.dtype).view(as_bits)
                worst[:, 4].index_add_(0, into, (stored != due).sum((1, 2)).to(torch.float64))
                continue
            for column, errors in enumerate(errors_of(cache, side, source[rows], *at)):
                worst[:, column].scatter_reduce_(0, into, errors.amax(-1), "amax")

    failures, results = [], []
    most = limits.step(cache.mode)
    for i, (steps, scale, zero, codes, bits) in enumerate(worst.tolist()):
        label = labels[i] if labels else None
        found = (
            (bits > 0, "row_bits", "the input's bits", f"{bits:.0f} other values"),
            (steps > most, "step", f"at most {most} steps", f"{steps:.3g}"),
            (codes > limits.CODE.value, "code", "the oracle's code or a neighbour of it", f"{codes:.3g} codes away"),
            (
                scale > limits.SCALE.value,
                "scale",
                f"within {limits.SCALE.value:.0e} of the row's own",
                f"{scale:.3g}",
            ),
            (zero > limits.ZERO_POINT.value, "zero_point", f"within {limits.ZERO_POINT.value} codes", f"{zero:.3g}"),
        )
        failures += [Failure(check, place(i, label), required, seen) for bad, check, required, seen in found if bad]
        results.append(WriteResult(i, steps, scale, zero, int(bits), label, codes))
    return WriteReport((*failures, *_untouched(cache, before, page, slot)), tuple(results))


def check_rotation(rotated: torch.Tensor, rows: torch.Tensor, head_size: int, *, rounded: bool) -> RotationReport:
    """Judge rotated rows (..., head_size) against the fp64 rotation of `rows`.

    `rounded`: whether they have passed through a 16-bit type, which has the wider limit.
    """
    due = rotate(rows, head_size)
    error = torch.linalg.vector_norm(rotated.to(torch.float64) - due, dim=-1)
    size = torch.linalg.vector_norm(due, dim=-1)
    relative = torch.where((size == 0) & (error == 0), 0.0, error / size).nan_to_num(nan=float("inf"))
    worst = float(relative.max()) if relative.numel() else 0.0
    limit = (limits.ROTATION_BF16 if rounded else limits.ROTATION_FP32).value
    failures = (Failure("rotation", "worst row", f"at most {limit:.0e}", f"{worst:.3g}"),) if worst > limit else ()
    return RotationReport(failures, worst)
