"""Inputs that the gate's batches do not have: rows of one value, rows that are not finite, nothing at all.

What the gate does cover on a card is not repeated here: dirt behind each sequence's end, q, k and v inside wider
tensors, slots of 32 bits, one-sided rows, repeated calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kvreg.core.modes import Mode
from kvreg.gate import run_attention, run_write
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.testing import Batch, Kind
from kvreg.testing.caches import nan_byte
from kvreg.validation.robust.findings import Finding, judged
from kvreg.validation.robust.lineups import (
    GROUP,
    HEAD,
    KV_HEADS,
    LineUp,
    as_integers,
    attended,
    differing,
    line_up,
    plan_for,
)

NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
VALUES = (0.0, 1.0, -3.0)
"""All-zero rows, and constant ones of either sign."""
WINDOW = 5
STORED = "a stored value that is not finite"
KINDS: tuple[Kind, ...] = ("decode", "prefill")


def odd(place: str, mode: str, decode: str) -> dict[str, Any]:
    """Check odd inputs of every sort; a task of a worker."""
    of = line_up(place, mode, decode)
    return odd_inputs(of).to_json()


def odd_inputs(of: LineUp) -> Finding:
    """Run every check below."""
    # Triton's interpreter decodes the NaN of e4m3 as 480; with a scale for each row the NaN is in the scale.
    deaf = of.place.interpreted and of.mode is Mode.FP8_PER_TENSOR
    checks = {name: check for name, check in CHECKS.items() if not (deaf and name == STORED)}
    failures = [f"{name}: {text}" for name, check in checks.items() for text in check(of)]
    return judged(", ".join(checks), failures)


def constant_rows(of: LineUp) -> Iterator[str]:
    """Judge rows of one value under the gate; attention over zeros must be zeros."""
    for value in VALUES:
        batch = of.batch("decode")
        batch = replace(batch, k=torch.full_like(batch.k, value), v=torch.full_like(batch.v, value))
        cache = of.cache(batch.pages)
        written = run_write(lambda b=batch, c=cache: write(c, b.k, b.v, b.slots), batch, cache.view)  # type: ignore[misc]

        def call(out: torch.Tensor, lse: torch.Tensor | None, b: Batch = batch, c: KVCache = cache) -> None:
            found = attended(c, b, out=out)
            if lse is not None:
                lse.copy_(found[1])

        judged_ = run_attention(call, batch, cache.view)
        for failure in (*written.failures, *judged_.failures):
            yield f"{value:g}: {failure}"


def stored_value_not_finite(of: LineUp) -> Iterator[str]:
    """Store one value that is not finite: no byte outside its slot, and no result that does not see it, may change."""
    for kind in KINDS:
        batch = of.batch(kind, padding=0)
        sequence = len(batch.contexts) - 1
        row = int((batch.row_sequence == sequence).nonzero()[batch.contexts[sequence] - 9])
        right = of.cache(batch.pages)
        write(right, batch.k, batch.v, batch.slots)
        due = attended(right, batch)[0]
        first, end = batch.cu_q_host[sequence : sequence + 2]
        seen_by = torch.zeros(due.shape[:2], dtype=torch.bool, device=due.device)
        seen_by[max(first, end - 9) :, -GROUP:] = True  # its own token's query and later ones, of the last KV head
        for value in NOT_FINITE:
            cache, v = of.cache(batch.pages), batch.v.clone()
            v[row, KV_HEADS - 1, 5] = value
            write(cache, batch.k, v, batch.slots)
            found, slot = attended(cache, batch)[0], int(batch.slots[row])
            changed = differing(_without(cache, slot), _without(right, slot))
            if changed:
                yield f"{kind}, {value}: required no other slot's bytes to change, found {changed} changed"
            spoiled = ~found.isfinite().all(-1)
            if not torch.equal(spoiled, seen_by):
                rows = f"the {int(seen_by.sum())} rows that see it"
                yield f"{kind}, {value}: required it in {rows}, found it in {int(spoiled.sum())}"
            others = differing(found[:first], due[:first])
            if others:
                yield f"{kind}, {value}: required the same bits in other sequences, found {others} others"


def _without(cache: KVCache, slot: int) -> torch.Tensor:
    """Return a copy of a cache's bytes, those of one slot zeroed."""
    copy = KVCache.from_buffer(cache.selection, cache.buffer.clone(), tensor_scales=cache.view.tensor_scales)
    view, page, place = copy.view, slot // cache.kind.page, slot % cache.kind.page
    for plane in (view.k, view.v, view.k_scale, view.v_scale):
        if plane is not None:
            as_integers(plane)[page, place] = 0
    return copy.buffer


def query_row_not_finite(of: LineUp) -> Iterator[str]:
    """Ask with one query row that is not finite: the other rows' bits stay."""
    for kind in KINDS:
        batch = of.batch(kind)
        cache = of.cache(batch.pages)
        write(cache, batch.k, batch.v, batch.slots)
        due = attended(cache, batch)[0]
        for value in NOT_FINITE:
            q = batch.q.clone()
            q[1, 0, 3] = value
            found = attended(cache, replace(batch, q=q))[0]
            found[1, 0] = due[1, 0]
            others = differing(found, due)
            if others:
                yield f"{kind}, {value}: required the same bits in other rows, found {others} others"


def outside_the_window(of: LineUp) -> Iterator[str]:
    """Store rows that are not finite where no window reaches: the results keep their bits."""
    windowed = replace(of, features=("causal", "window"))
    for kind in KINDS:
        batch = windowed.batch(kind, padding=0)
        due = _windowed(windowed, batch)
        starts = [0, *torch.tensor(batch.contexts).cumsum(0).tolist()]
        for value in NOT_FINITE:
            k, v = batch.k.clone(), batch.v.clone()
            for start, context, queries in zip(starts, batch.contexts, batch.q_lens, strict=False):
                unseen = max(0, context - queries - WINDOW + 1)
                k[start : start + unseen] = value
                v[start : start + unseen] = value
            found = _windowed(windowed, replace(batch, k=k, v=v))
            others = differing(found, due)
            if others:
                yield f"{kind}, {value}: required the bits without them, found {others} others"


def _windowed(of: LineUp, batch: Batch) -> torch.Tensor:
    cache = of.cache(batch.pages)
    cache.buffer.fill_(nan_byte(of.mode, cache.kind.fp8 or ""))
    write(cache, batch.k, batch.v, batch.slots)
    return attended(cache, batch, window=WINDOW)[0]


def strided_output(of: LineUp) -> Iterator[str]:
    """Let the output lie inside a wider tensor: it gets the same bits, and its neighbours keep theirs."""
    for kind in KINDS:
        batch = of.batch(kind)
        cache = of.cache(batch.pages)
        write(cache, batch.k, batch.v, batch.slots)
        tokens, heads, width = batch.q.shape
        wide = torch.full((tokens, heads + 1, width + 16), 7.0, dtype=batch.q.dtype, device=batch.q.device)
        inner = wide[:, :heads, :width]
        attended(cache, batch, out=inner)
        others = differing(inner, attended(cache, batch)[0])
        inner.fill_(7.0)
        spilled = int((wide != 7.0).sum())
        if others or spilled:
            yield f"{kind}: required the same bits and no others, found {others} others and {spilled} neighbours"


def pages_behind_the_last(of: LineUp) -> Iterator[str]:
    """Name pages that there are none of behind the last page of each sequence: nobody may look them up."""
    for kind in KINDS:
        batch = of.batch(kind)
        cache = of.cache(batch.pages)
        write(cache, batch.k, batch.v, batch.slots)
        due = attended(cache, batch)[0]
        last = (batch.seq_lens + batch.page - 1) // batch.page
        behind = torch.arange(batch.page_table.shape[1], device=last.device) >= last[:, None]
        for value in (-1, 1 << 30):
            found = attended(cache, replace(batch, page_table=batch.page_table.masked_fill(behind, value)))[0]
            others = differing(found, due)
            if others:
                yield f"{kind}, page {value}: required the same bits, found {others} others"


def nothing(of: LineUp) -> Iterator[str]:
    """Write no rows, and attend without rows, without sequences, and over empty sequences."""
    device = of.place.torch_device
    cache = of.cache(3)
    before = cache.buffer.clone()
    rows = torch.ones((2, KV_HEADS, HEAD), dtype=torch.bfloat16, device=device)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    write(cache, rows, rows, ints().long())
    write(cache, rows[:0], rows[:0], ints().long())
    write(cache, rows, rows, ints(-1, -1).long())
    if differing(cache.buffer, before):
        yield "required no byte to change by writes of nothing, found some changed"
    batch = of.batch("decode")
    q = batch.q[:2]
    for name, lengths, table_rows in (("no sequences", (), 0), ("empty sequences", (0, 0), 2)):
        table = torch.zeros((table_rows, 3), dtype=torch.int32, device=device)
        cu_q = ints(*range(len(lengths) + 1))
        made = plan(cache, cu_q, ints(*lengths), max_context=32)
        out, lse = attend(q, cache, table, ints(*lengths), cu_q, made, out=q.clone(), return_lse=True)
        if bool(out.ne(0).any()) or not bool(lse.isneginf().all()):
            yield f"{name}: required zeros and an lse of -inf, found others"
    written = of.cache(batch.pages)
    write(written, batch.k, batch.v, batch.slots)
    tensors = (written, batch.page_table, batch.seq_lens, torch.zeros_like(batch.cu_q), plan_for(written, batch))
    if attend(batch.q[:0], *tensors).numel():
        yield "no query rows: required no output, found some"


CHECKS: dict[str, Callable[[LineUp], Iterator[str]]] = {
    "constant rows": constant_rows,
    STORED: stored_value_not_finite,
    "a query value that is not finite": query_row_not_finite,
    "values that are not finite outside the window": outside_the_window,
    "an output inside a wider tensor": strided_output,
    "page numbers behind the last page": pages_behind_the_last,
    "no rows, no sequences, empty sequences": nothing,
}
