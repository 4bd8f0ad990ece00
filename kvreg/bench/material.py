"""The tensors of a shape: random rows, pages in random order, and which of the results are judged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from kvreg.bench.shapes import Shape

JUDGED_TOKENS = {"cpu": 4096, "card": 32768}
"""Cached tokens, over the judged sequences, beyond the first of them; fp64 over all would take longer than timing."""
JUDGED_QUERIES = 64
"""Query rows of a judged sequence: its last ones."""

DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a result that are compared with fp64 attention, as a batch of its own."""

    sequences: torch.Tensor
    """(n,) int64, of the shape's."""
    rows: torch.Tensor
    """(tokens,) int64, query rows of the shape's."""
    contexts: tuple[int, ...]
    cu_q: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Material:
    """One rotation's tensors; rotation r of a cache has its pages `r * pages` further on."""

    shape: Shape
    place: str
    q: torch.Tensor
    """(query tokens, q_heads, head_size) bf16."""
    k: torch.Tensor
    """(cached tokens, kv_heads, head_size) bf16, sequence after sequence. Without a row where only compiling."""
    v: torch.Tensor
    starts: torch.Tensor
    """(n_seqs,) int64: first cached token of each sequence in `k`."""
    seq_lens: torch.Tensor
    """(n_seqs,) int32."""
    cu_q: torch.Tensor
    """(n_seqs + 1,) int32."""
    page_table: torch.Tensor
    """(n_seqs, most pages) int32; behind a sequence's own pages it names page 0."""
    slots: torch.Tensor
    """(cached tokens,) int64."""
    pages: int

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return float(self.shape.head_size**-0.5)

    @property
    def longest(self) -> int:
        """Most tokens of a sequence."""
        return max(self.shape.contexts)

    def tables(self, rotations: int) -> list[torch.Tensor]:
        """Return the page table of each rotation."""
        return [self.page_table + rotation * self.pages for rotation in range(rotations)]

    def judged(self) -> Judged:
        """Return what is judged: the longest sequence, and the shortest others that the limit has room for."""
        contexts, queries = self.shape.contexts, self.shape.queries
        order = sorted(range(len(contexts)), key=lambda place: contexts[place])
        chosen, room = [order.pop()], JUDGED_TOKENS["cpu" if self.place == "cpu" else "card"]
        for place in order:
            room -= contexts[place]
            if room < 0:
                break
            chosen.append(place)
        ends = list(accumulate(queries))
        counts = [min(queries[place], JUDGED_QUERIES) for place in chosen]
        rows = [torch.arange(ends[p] - n, ends[p]) for p, n in zip(chosen, counts, strict=True)]
        return Judged(
            sequences=torch.tensor(chosen).to(self.place),
            rows=torch.cat(rows).to(self.place),
            contexts=tuple(contexts[place] for place in chosen),
            cu_q=(0, *accumulate(counts)),
        )


def build(shape: Shape, place: str, *, hollow: bool = False) -> Material:
    """Return random N(0,1) rows and shuffled pages for a shape.

    `hollow` gives no row and one page that stands for all of them: enough to compile what the shape launches, since
    every stride, length and alignment is the shape's own.
    """
    torch.manual_seed(0)
    contexts = shape.contexts
    needed = [-(-context // shape.page) for context in contexts]
    order = torch.randperm(sum(needed))
    table = torch.zeros((len(contexts), max(needed)), dtype=torch.int64)
    for row, (count, end) in enumerate(zip(needed, accumulate(needed), strict=True)):
        table[row, :count] = order[end - count : end]
    steps = torch.arange(shape.page)
    slots = [
        (table[row, :count, None] * shape.page + steps).reshape(-1)[: contexts[row]]
        for row, count in enumerate(needed)
    ]
    rows = 0 if hollow else shape.tokens
    wide = (shape.kv_heads, shape.head_size)
    return Material(
        shape=shape,
        place=place,
        q=torch.randn(sum(shape.queries), shape.q_heads, shape.head_size, device=place, dtype=DTYPE),
        k=torch.randn(rows, *wide, device=place, dtype=DTYPE),
        v=torch.randn(rows, *wide, device=place, dtype=DTYPE),
        starts=torch.tensor([0, *accumulate(contexts)][:-1]).to(place),
        seq_lens=torch.tensor(contexts, dtype=torch.int32).to(place),
        cu_q=torch.tensor([0, *accumulate(shape.queries)], dtype=torch.int32).to(place),
        page_table=(torch.zeros_like(table) if hollow else table).to(torch.int32).to(place),
        slots=torch.cat(slots).to(place),
        pages=1 if hollow else sum(needed),
    )
