"""Running one call under the gate: the one function that validation, the tuner and the tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from kvreg.core.requests import Accuracy
from kvreg.gate.attention import check_attention, row_errors
from kvreg.gate.poison import Buffer, buffer
from kvreg.gate.reports import Failure, GateReport, WriteReport
from kvreg.gate.write import buffers, check_write, snapshot
from kvreg.oracle import Cache, PlainRows, Reference, attention, over_cache
from kvreg.testing import MARK_BYTE, Batch

AttentionCall = Callable[[torch.Tensor, torch.Tensor | None], None]
"""(out, lse): fills out (tokens, q_heads, head_size) in the model's dtype and lse (tokens, q_heads) float32."""


def reference_of(batch: Batch, cache: Cache) -> Reference:
    """Return the fp64 result of a batch over what its cache holds."""
    asked = batch.features.fields()
    return over_cache(batch.q, cache, batch.page_table, batch.contexts, batch.cu_q_host, scale=batch.scale, **asked)


def quantization_error(batch: Batch, reference: Reference) -> float:
    """Return what the mode's rounding alone costs on a batch: the mean e of fp64 attention over the unquantized rows.

    Class `fast` is measured by it. Raises ValueError for a batch with padding rows: its rows do not lie in order.
    """
    if batch.k.shape[0] != sum(batch.contexts):
        raise ValueError(
            f"quantization error: required a batch without padding rows ({sum(batch.contexts)}), "
            f"found {batch.k.shape[0]} rows; build it with padding=0"
        )
    starts = torch.zeros(len(batch.contexts), dtype=torch.int64, device=batch.q.device)
    starts[1:] = batch.seq_lens[:-1].to(torch.int64).cumsum(0)
    rows, asked = PlainRows(batch.k, batch.v, starts), batch.features.fields()
    exact = attention(batch.q, rows, batch.contexts, batch.cu_q_host, scale=batch.scale, **asked)
    return float(row_errors(reference.out, exact)[0].mean())


def _guard(buffers_: tuple[tuple[str, Buffer], ...]) -> tuple[Failure, ...]:
    written = torch.stack([b.guards_written() for _, b in buffers_]).tolist()
    return tuple(
        Failure("guard", f"rows around the {name}", "no write", f"{count} elements written")
        for (name, _), count in zip(buffers_, written, strict=True)
        if count
    )


def run_attention(
    call: AttentionCall,
    batch: Batch,
    cache: Cache,
    *,
    accuracy: Accuracy = "exact",
    reference: Reference | None = None,
    with_lse: bool = True,
    repeats: int = 0,
    quantization_error: float | None = None,
) -> GateReport:
    """Poison an output, call, and judge it.

    `cache` holds the batch's rows already. `reference` saves computing it again where several calls read one cache.
    `repeats`: further calls that must give the same bits. `quantization_error`: needed by class `fast` only.
    """
    shape = tuple(batch.q.shape)
    out = buffer(shape, batch.q.dtype, batch.q.device)
    lse = buffer(shape[:2], torch.float32, batch.q.device) if with_lse else None
    call(out.inner, lse.inner if lse else None)
    report = check_attention(
        out.inner,
        reference or reference_of(batch, cache),
        batch.q_lens,
        dtype=batch.q.dtype,
        lse=lse.inner if lse else None,
        labels=batch.labels,
        accuracy=accuracy,
        quantization_error=quantization_error,
    )
    extra = _guard((("output", out), *((("lse", lse),) if lse else ())))
    if repeats:
        first = out.whole.clone()
        for number in range(repeats):
            out.fill()
            call(out.inner, lse.inner if lse else None)
            as_bits = torch.int32 if first.dtype == torch.float32 else torch.int16
            differing = int((out.whole.view(as_bits) != first.view(as_bits)).sum())
            if differing:
                extra = (*extra, Failure("repeat", f"call {number + 2}", "the same bits", f"{differing} others"))
                break
    return replace(report, failures=(*report.failures, *extra))


def run_write(call: Callable[[], None], batch: Batch, cache: Cache, *, fill: int | None = MARK_BYTE) -> WriteReport:
    """Set every byte of the cache's buffers to `fill` (None leaves them), call, and judge every byte of them."""
    if fill is not None:
        for whole in buffers(cache).values():
            whole.fill_(fill)
    before = snapshot(cache)
    call()
    return check_write(
        cache, before, batch.k, batch.v, batch.slots, row_sequence=batch.row_sequence, labels=batch.labels
    )
