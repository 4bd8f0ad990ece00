"""Two streams: attentions side by side with a plan each, and a write on one that an attention on the other waits for.

Every round is compared, bit for bit, with what the same calls gave one after the other. Without a card there is one
queue only; the calls then follow each other, and what must not show is that they are repeated.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg.testing import Batch, Kind
from kvreg.validation.robust.findings import Finding, judged, skipped
from kvreg.validation.robust.lineups import LineUp, Result, as_integers, attended, line_up, plan_for, wait
from kvreg.validation.unproven import Place

ROUNDS = {"card": 200, "interpreter": 2, "cpu": 10}
KINDS: tuple[Kind, ...] = ("decode", "prefill")


def side_by_side(place: str, mode: str, decode: str) -> dict[str, Any]:
    """Check concurrent attentions and a write with its reader on two streams; a task of a worker."""
    of = line_up(place, mode, decode)
    if of.place.is_card and not of.place.torch_device.startswith("cuda"):
        return skipped("streams are taken from torch.cuda alone").to_json()
    return concurrent(of).to_json()


def concurrent(of: LineUp) -> Finding:
    """Compare every round with the serial results."""
    rounds = ROUNDS["card" if of.place.is_card else of.place.name]
    streams = (_stream(of.place), _stream(of.place))
    attends = {kind: _two_attends(of, kind, streams, rounds) for kind in KINDS}
    handed = _write_then_attend(of, streams, rounds)
    failures = [
        f"two attentions, {kind}: required the serial bits in {2 * rounds} results, found {count} others"
        for kind, count in attends.items()
        if count
    ]
    if handed:
        failures.append(f"write, then attend: required the serial bits in {rounds} results, found {handed} others")
    how = "on two streams" if of.place.is_card else "one after the other (one stream without a card)"
    return judged(f"{rounds} rounds {how}: two attentions (decode, prefill), a write and its reader", failures)


def _two_attends(of: LineUp, kind: Kind, streams: tuple[Any, Any], rounds: int) -> int:
    """Return how many results of `rounds` rounds of two attentions differ from the serial ones."""
    batches = (of.batch(kind), of.batch(kind, contexts=of.contexts[::-1]))
    caches = tuple(_written(of, batch) for batch in batches)
    plans = tuple(plan_for(cache, batch) for cache, batch in zip(caches, batches, strict=True))
    due = [attended(*call) for call in zip(caches, batches, plans, strict=True)]
    wait(of.place)
    others: list[torch.Tensor] = []
    for _ in range(rounds):
        for stream, cache, batch, made, right in zip(streams, caches, batches, plans, due, strict=True):
            with _on(stream):
                others.append(_differs(attended(cache, batch, made), right))
    wait(of.place)
    return sum(torch.stack(others).tolist())


def _write_then_attend(of: LineUp, streams: tuple[Any, Any], rounds: int) -> int:
    """Return how many attentions did not see the rows that were written right before them on the other stream."""
    batch = of.batch("decode")
    cache, made = of.cache(batch.pages), None
    rows = [(batch.k, batch.v), (batch.v, batch.k)]
    due: list[Result] = []
    for k, v in rows:
        write(cache, k, v, batch.slots)
        made = plan_for(cache, batch)
        due.append(attended(cache, batch, made))
    wait(of.place)
    others: list[torch.Tensor] = []
    for number in range(rounds):
        turn = number % 2
        with _on(streams[0]):
            write(cache, *rows[turn], batch.slots)
        _after(streams[1], streams[0])
        with _on(streams[1]):
            others.append(_differs(attended(cache, batch, made), due[turn]))
        _after(streams[0], streams[1])
    wait(of.place)
    return sum(torch.stack(others).tolist())


def _written(of: LineUp, batch: Batch) -> KVCache:
    cache = of.cache(batch.pages)
    write(cache, batch.k, batch.v, batch.slots)
    return cache


def _differs(found: Result, right: Result) -> torch.Tensor:
    """Return whether any bit differs, left on the device: reading it would end the overlap."""
    return (
        torch.stack([(as_integers(x) != as_integers(y)).any() for x, y in zip(found, right, strict=True)])
        .any()
        .to(torch.int32)
    )


def _stream(place: Place) -> Any:
    return torch.cuda.Stream() if place.is_card else None


def _on(stream: Any) -> AbstractContextManager[Any]:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _after(later: Any, earlier: Any) -> None:
    """Let what is enqueued next on one stream wait, by an event, for what is on the other."""
    if later is not None:
        later.wait_event(earlier.record_event())
