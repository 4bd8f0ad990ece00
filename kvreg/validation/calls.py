"""From a cell to launches: the batch, the cache that an ideal writer filled, and the calls of the variant under test.

The launcher is called directly, with the plan that `kvreg.plan` would make and with others that it could make, so that
the variant under test is the one that runs, whatever the batch looks like.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache as cached
from functools import lru_cache
from typing import Any

import torch

from kvreg.core import registry
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg.gate import reference_of
from kvreg.oracle import Reference
from kvreg.runtime.launchers import AttendCall, CacheView, Features, load
from kvreg.testing import Batch, CacheBytes, Kind, Label, build
from kvreg.validation.cells import Cell
from kvreg_tuning.benchmark import split_plan

Attend = Callable[[torch.Tensor, torch.Tensor | None], None]
ANY_BLOCKS = 1 << 20
"""Blocks of query rows that no sequence has."""
FEW_SHARES = 7
"""Of 60 sequences of 1 to 8192 tokens each holds several whole ones, and parts of others."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cached
def variants_of(platform: str) -> tuple[Variant, ...]:
    """Return every variant of a platform."""
    return tuple(
        each for backend in registry.backends() if backend.platform == platform for each in backend.variants()
    )


def variant_of(variant: str, platform: str) -> Variant:
    """Return a platform's variant by its id; raises KeyError for one that is not offered."""
    found = {str(each.id): each for each in variants_of(platform)}
    return found[variant]


def request_of(cell: Cell, device: str) -> Request:
    """Return the request that a cell stands for; `default_config` reads it."""
    return Request(
        device=device,
        mode=Mode(cell.mode),
        head_size=cell.head_size,
        q_heads=cell.group * cell.kv_heads,
        kv_heads=cell.kv_heads,
        page=cell.page,
        dtype=cell.dtype,
        batch=cell.sequences,
        context=max(cell.contexts),
        layout=LayoutId.parse(cell.layout),
    )


def batch_of(cell: Cell, place: str) -> Batch:
    """Return a cell's batch on a torch device; those of the last cell, whose rows may be the same, are kept."""
    batch = _batch(cell.rows, replace(cell, layout="planar.1", variant="", op=""), place)
    layout = LayoutId.parse(cell.layout)
    return replace(batch, layout=layout, labels=tuple(replace(each, layout=cell.layout) for each in batch.labels))


@lru_cache(maxsize=2)
def _batch(rows: str, cell: Cell, place: str) -> Batch:
    kind: Kind = {"decode": "decode", "prefill": "prefill", "mixed": "mixed"}.get(cell.kind, "decode")  # type: ignore[assignment]
    return build(
        kind,
        head_size=cell.head_size,
        group=cell.group,
        kv_heads=cell.kv_heads,
        page=cell.page,
        dtype=cell.dtype,
        contexts=cell.contexts,
        inputs=cell.inputs,
        seeds=cell.seeds,
        device=place,
        features=cell.features,
        window=cell.window,
    )


_reference: dict[str, Reference] = {}


def filled(cell: Cell, batch: Batch, device: Device) -> tuple[CacheBytes, Reference]:
    """Return the cache as the oracle's writer leaves it, and the fp64 result over it.

    The reference of the last cell is kept: the oracle's writer stores the same codes in every layout.
    """
    cache = batch.filled(Mode(cell.mode), fp8=fp8_type(device))
    if cell.rows not in _reference:
        _reference.clear()
        _reference[cell.rows] = reference_of(batch, cache)
    return cache, _reference[cell.rows]


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to launch an attention variant."""

    name: str
    call: Attend
    with_lse: bool
    repeats: int = 0


def attend_cuts(
    cell: Cell, batch: Batch, cache: CacheBytes, variant: Variant, device: Device, *, all_forms: bool = False
) -> Iterator[Cut]:
    """Yield the launches of a cell.

    `planned`: as `kvreg.plan` cuts this batch, twice, the bits compared. `shares`: in as many equal shares as it plans
    where it is told of unlike lengths, twice too; where the launcher has them and each sequence one query row.
    `strided`: q inside a wider tensor of nan and 1e30, no lse. For decode also `whole` (no split), `fixed` (the fixed
    length of batch_invariant=True) and `few shares`, strided. Cells that are not `thorough` are launched in the first
    two ways only.
    Prefill that lays rows out where a sequence has many of them, by its own rule in `planned`, is also launched with
    all of them `laid out`, and where thorough with none (`pages`).
    `all_forms` adds what another batch of the same shape may come down to, for compiling.
    """
    launcher = load(variant.launcher)
    config = dict(variant.default_config(device, request_of(cell, device.key)))
    view = CacheView(**cache.fields())
    asked = Features(**batch.features.fields())
    tokens, longest = batch.q.shape[0], max(batch.contexts)

    # The interpreter is a hundred times slower, and deterministic by construction.
    twice = 0 if INTERPRETED else 1

    def cut(
        name: str,
        splits: int,
        chunk: int,
        shares: int = 0,
        *,
        q: torch.Tensor = batch.q,
        lse: bool = True,
        again: int = 0,
        **changed: int,
    ) -> Cut:
        launched = {**config, **changed}
        split = split_plan(tokens, cell.group * cell.kv_heads, cell.head_size, splits, chunk, batch.q.device, shares)

        def call(out: torch.Tensor, lse_out: torch.Tensor | None) -> None:
            launcher(
                AttendCall(
                    q, view, batch.page_table, batch.seq_lens, batch.cu_q, out, lse_out, batch.scale, split, asked
                ),
                launched,
            )

        return Cut(name, call, lse, again)

    planned = launcher.splits(tokens, cell.kv_heads, cell.group, longest, device.compute_units, config)
    yield cut("planned", planned, 0, again=twice)
    lays_out = "blocks_laid_out" in config
    if lays_out:
        yield cut("laid out", planned, 0, again=twice, blocks_laid_out=0)
    shared = 0
    if cell.kind == "decode" and has_shares(cell, device):
        shared = launcher.shares(cell.kv_heads, device.compute_units, config)
    if shared:
        yield cut("shares", 2, 0, shared, again=twice)
    if not cell.thorough:
        if all_forms and planned > 1 and cell.features == ("causal",):
            yield cut("whole", 1, 0)
        return
    strided = batch.strided().q
    if lays_out:
        yield cut("strided, laid out", planned, 0, q=strided, lse=False, blocks_laid_out=0)
        yield cut("pages", planned, 0, blocks_laid_out=ANY_BLOCKS)
    yield cut("strided", planned, 0, q=strided, lse=False)
    if shared:
        yield cut("few shares", 2, 0, FEW_SHARES, q=strided, lse=False)
    chunk = launcher.chunk(config)
    if planned > 1:
        yield cut("whole", 1, 0)
        if all_forms:
            yield cut("whole without lse", 1, 0, lse=False)
    if chunk:
        yield cut("fixed", -(-longest // chunk), chunk)
        if planned == 1 and longest > 16:
            yield cut("halved", 2, 0)


def has_shares(cell: Cell, device: Device) -> bool:
    """Whether the launcher of a cell offers equal shares."""
    return hasattr(load(variant_of(cell.variant, device.platform).launcher), "shares")


def write_calls(
    cell: Cell, batch: Batch, cache: CacheBytes, variant: Variant, device: Device
) -> Iterator[tuple[str, Batch, Callable[[], None]]]:
    """Yield (name, batch, call): a dense write, a strided one among nan and 1e30, and one with int32 slots."""
    launcher = load(variant.launcher)
    config = dict(variant.default_config(device, request_of(cell, device.key)))
    view = CacheView(**cache.fields())

    def call(of: Batch) -> Callable[[], None]:
        return lambda: launcher(view, of.k, of.v, of.slots, config)

    narrow = replace(batch, slots=batch.slots.to(torch.int32))
    for name, of in (("dense", batch), ("strided", batch.strided()), ("int32 slots", narrow)):
        yield name, of, call(of)


def config_of(variant: Variant, device: Device, head_size: int) -> Mapping[str, Any]:
    """Return the launch parameters that a trace names: those of select's default request."""
    request = Request(device=device.key, mode=variant.mode, head_size=head_size)
    return dict(variant.default_config(device, request))


def label_row(label: Label) -> dict[str, Any]:
    """Return what a journal row says of a sequence."""
    return {"input": label.input, "context": label.context, "seed": label.seed}


def is_decode(cell: Cell) -> bool:
    """Whether the cell's variant is a decode variant."""
    return cell.op == Op.DECODE
