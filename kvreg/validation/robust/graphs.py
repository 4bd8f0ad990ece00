"""Steps of a model as a captured graph: lengths, pages, slots, q, k and v change in place between its replays.

One step writes and attends in two layers that share one plan. Each replay is compared with the same step called
eagerly on other memory, bit for bit: outputs, lse, and every byte of the caches. Without a card nothing can be
captured; the step is then called again over the same tensors, which tries the plan and the schedule all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import Plan, plan
from kvreg.validation.robust.findings import Finding, judged, skipped
from kvreg.validation.robust.lineups import GROUP, HEAD, KV_HEADS, PAGE, LineUp, Result, differing, line_up
from kvreg.validation.unproven import Place

LAYERS = 2
STEPS = {"card": 12, "interpreter": 3, "cpu": 8}
PADDED_ROWS = 2
"""Rows of k and v with slot -1 that every step carries behind its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a captured graph cannot change: how many sequences and query rows a step has."""

    name: str
    sequences: int
    rows: int
    longest: int
    """Most tokens of a sequence, for which the plan is made."""
    total_known: bool = False
    """Whether the plan is told the tokens of all sequences together, which are unlike: as equal shares, if offered."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of one step; `copy_` changes them in place."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    slots: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_q: torch.Tensor

    def copy_(self, other: Inputs) -> None:
        """Take the values of another step."""
        for name in self.__slots__:
            getattr(self, name).copy_(getattr(other, name))

    def clone(self) -> Inputs:
        """Return the same values in other memory."""
        return Inputs(*(getattr(self, name).clone() for name in self.__slots__))


def replays(place: str, mode: str, decode: str) -> dict[str, Any]:
    """Check captured decode steps and captured steps of mixed query lengths; a task of a worker."""
    of = line_up(place, mode, decode)
    if of.place.is_card and not of.place.torch_device.startswith("cuda"):
        return skipped("graphs are captured through torch.cuda alone").to_json()
    return replayed(of).to_json()


def replayed(of: LineUp) -> Finding:
    """Compare replays with eager steps."""
    longest = max(of.contexts)
    shapes = (
        Shape("decode", 5, 5, longest),
        Shape("decode of unlike lengths", 5, 5, longest, total_known=True),
        Shape("mixed", 4, 12, longest),
    )
    count = STEPS["card" if of.place.is_card else of.place.name]
    failures = [text for shape in shapes for text in _compare(of, shape, schedule(of.place, shape, count))]
    how = "replays of a graph" if of.place.is_card else "calls over the same tensors (no graph without a card)"
    names = ", ".join(shape.name for shape in shapes)
    return judged(f"{count} {how} each for {names}; {LAYERS} layers on one plan", failures)


def schedule(place: Place, shape: Shape, count: int) -> list[Inputs]:
    """Return the inputs of `count` steps; the pages of a sequence stay, other sequences take its place by turns.

    Lengths grow by the rows of each step; one sequence is empty in every other step and the last one of a mixed batch
    always is, with rows behind it that belong to no sequence.
    """
    generator = torch.Generator().manual_seed(shape.rows)
    pages = -(-shape.longest // PAGE)
    table = torch.randperm(shape.sequences * pages, generator=generator).view(shape.sequences, pages)
    # The first sequence ends at the longest context, the others are shorter: some within one page, one within a split.
    first = shape.longest - shape.rows * count
    lengths = [first // (1 + 3 * s) for s in range(shape.sequences)]
    return [_step(place, shape, number, table, lengths, generator) for number in range(count)]


def _step(
    place: Place, shape: Shape, number: int, table: torch.Tensor, lengths: list[int], generator: torch.Generator
) -> Inputs:
    """Return the inputs of a step, and let `lengths` grow by it."""
    order = [(s + number) % shape.sequences for s in range(shape.sequences)]
    counts = _query_rows(shape, number)
    seq_lens, slots = [], []
    for place_in_batch, (s, rows) in enumerate(zip(order, counts, strict=True)):
        last = place_in_batch == shape.sequences - 1
        if not rows or (last and (shape.rows > shape.sequences or number % 2)):
            seq_lens.append(0)
            slots += [-1] * rows
            continue
        at = torch.arange(lengths[s], lengths[s] + rows)
        slots += (table[s][at // PAGE] * PAGE + at % PAGE).tolist()
        lengths[s] += rows
        seq_lens.append(lengths[s])
    slots += [-1] * (shape.rows + PADDED_ROWS - len(slots))

    def normal(rows: int, heads: int) -> torch.Tensor:
        return torch.randn((rows, heads, HEAD), generator=generator).to(torch.bfloat16)

    cu_q = torch.tensor([0, *counts]).cumsum(0)
    values = (
        normal(shape.rows, GROUP * KV_HEADS),
        normal(shape.rows + PADDED_ROWS, KV_HEADS),
        normal(shape.rows + PADDED_ROWS, KV_HEADS),
        torch.tensor(slots),
        table[order].to(torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        cu_q.to(torch.int32),
    )
    return Inputs(*(x.to(place.torch_device) for x in values))


def _query_rows(shape: Shape, number: int) -> list[int]:
    """Return the query rows of each sequence: one, or other lengths in every step and two rows of no sequence."""
    if shape.rows == shape.sequences:
        return [1] * shape.sequences
    free = shape.rows - 2
    first = 1 + number % (free - 1)
    return [first, free - first, *[0] * (shape.sequences - 2)]


def _compare(of: LineUp, shape: Shape, steps: Sequence[Inputs]) -> list[str]:
    pages = int(steps[0].page_table.numel())
    # The rows that the first step finds in the caches are those of N(0,1) rows written once.
    captured, eager = ([of.cache(pages) for _ in range(LAYERS)] for _ in range(2))
    for caches in (captured, eager):
        _fill(of, caches, pages)
    static = steps[0].clone()
    # The sum is that of the first step: the captured plan keeps it while lengths grow.
    total = int(static.seq_lens.sum()) if shape.total_known else None

    def planned(cache: KVCache, inputs: Inputs) -> Plan:
        return plan(cache, inputs.cu_q, inputs.seq_lens, max_context=shape.longest, total_context=total)

    made = planned(captured[0], static)

    def step() -> list[Result]:
        return [_layer(cache, static, made) for cache in captured]

    replay, results = _recorded(of.place, step, captured)
    failures = []
    for number, inputs in enumerate(steps):
        static.copy_(inputs)
        replay()
        own = inputs.clone()
        due = [_layer(cache, own, planned(cache, own)) for cache in eager]
        found = [*(x for pair in results() for x in pair), *(cache.buffer for cache in captured)]
        right = [*(x for pair in due for x in pair), *(cache.buffer for cache in eager)]
        names = [f"{name} of layer {n + 1}" for n in range(LAYERS) for name in ("output", "lse")]
        names += [f"cache of layer {n + 1}" for n in range(LAYERS)]
        for name, one, other in zip(names, found, right, strict=True):
            others = differing(one, other)
            if others:
                text = f"required the bits of the eager call, found {others} of {other.numel()} others"
                failures.append(f"{shape.name}, replay {number + 1}, {name}: {text}")
    return failures


def _layer(cache: KVCache, inputs: Inputs, made: Plan) -> Result:
    write(cache, inputs.k, inputs.v, inputs.slots)
    arguments = (inputs.q, cache, inputs.page_table, inputs.seq_lens, inputs.cu_q, made)
    out, lse = attend(*arguments, return_lse=True)
    return out, lse


def _fill(of: LineUp, caches: Sequence[KVCache], pages: int) -> None:
    """Write N(0,1) rows into every slot, others in each layer and the same in each call."""
    generator = torch.Generator().manual_seed(pages)
    for cache in caches:
        k, v = (torch.randn((cache.slots, KV_HEADS, HEAD), generator=generator).to(torch.bfloat16) for _ in range(2))
        device = of.place.torch_device
        write(cache, k.to(device), v.to(device), torch.arange(cache.slots, device=device))


def _recorded(
    place: Place, step: Callable[[], list[Result]], caches: Sequence[KVCache]
) -> tuple[Callable[[], None], Callable[[], list[Result]]]:
    """Return (replay, results): a call that does the step again, and what it has left in its tensors.

    Steps that were made on the way leave no trace in the caches.
    """
    if not place.is_card:
        latest: list[list[Result]] = []

        def again() -> None:
            latest[:] = [step()]

        return again, lambda: latest[0]
    before = [cache.buffer.clone() for cache in caches]
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # compiled before it is captured
        step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for cache, bytes_ in zip(caches, before, strict=True):
        cache.buffer.copy_(bytes_)
    return graph.replay, lambda: captured
