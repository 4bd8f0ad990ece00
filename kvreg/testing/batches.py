"""One batch of many sequences: contexts, inputs and seeds together, each sequence labelled, pages in random order.

A batch is what a write call and an attention call get. It holds no cache: `Batch.cache(mode)` makes one of the right
size, `Batch.filled(mode)` one that an ideal writer has filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kvreg.core import formats
from kvreg.core.layouts import PLANAR, LayoutId
from kvreg.core.modes import Mode
from kvreg.oracle import store
from kvreg.testing.caches import DTYPES, TENSOR_SCALES, CacheBytes, allocate
from kvreg.testing.features import CAUSAL, WINDOWS, FeatureValues, draw, words_of
from kvreg.testing.inputs import INPUTS, values

Kind = Literal["decode", "prefill", "mixed"]
KINDS: tuple[Kind, ...] = ("decode", "prefill", "mixed")
CONTEXTS = (1, 17, 64, 1024, 8192)
"""Contexts of the gate: one token, just past a page, whole pages, and two lengths that are split."""
PREFILL_QUERIES = 64
"""Query rows of a prefill sequence, at most: whole contexts up to here, the end of longer ones."""
DRAFTS = (8, 1, 3, 5)
"""Query rows of decode sequences with multi_query_split, by turns: drafts that one step verifies, at most 8."""
EMPTY = "empty"
"""Input word of sequences without a key; their result is zeros."""


@dataclass(frozen=True, slots=True)
class Label:
    """What one sequence of a batch stands for; results are gathered by it."""

    group: int
    kind: str
    layout: str
    input: str
    context: int
    seed: int
    features: str = "causal"
    """Feature words in one: `causal+window`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one write and one attention call, and what each sequence stands for."""

    labels: tuple[Label, ...]
    q: torch.Tensor
    """(tokens, q_heads, head_size), model dtype; in a mixed batch the last rows belong to no sequence."""
    k: torch.Tensor
    """(rows, kv_heads, head_size), model dtype: every token of every sequence, and padding rows."""
    v: torch.Tensor
    slots: torch.Tensor
    """(at most rows,) int64, -1 for padding; rows beyond it have no slot at all."""
    row_sequence: torch.Tensor
    """(rows,) int64: the sequence of a row, -1 for padding."""
    page_table: torch.Tensor
    """(n_seqs, max_pages) int32; behind a sequence's own pages it names a page that nobody writes."""
    seq_lens: torch.Tensor
    """(n_seqs,) int32."""
    cu_q: torch.Tensor
    """(n_seqs + 1,) int32."""
    contexts: tuple[int, ...]
    """`seq_lens` as host integers."""
    q_lens: tuple[int, ...]
    pages: int
    """Pages that a cache needs for this batch, the page that nobody writes included."""
    page: int
    dtype: str
    layout: LayoutId
    scale: float
    features: FeatureValues = CAUSAL
    """What attention is asked for: `Features(**batch.features.fields())`."""

    @property
    def kv_heads(self) -> int:
        """KV heads of a row."""
        return int(self.k.shape[1])

    @property
    def head_size(self) -> int:
        """Channels of a row."""
        return int(self.k.shape[2])

    @property
    def cu_q_host(self) -> tuple[int, ...]:
        """`cu_q` as host integers."""
        total = [0]
        for length in self.q_lens:
            total.append(total[-1] + length)
        return tuple(total)

    def cache(
        self,
        mode: Mode,
        *,
        fill: int | None = None,
        lead: int = 0,
        gap: int = 0,
        fp8: str = formats.E4M3FN,
        tensor_scales: Sequence[float] = TENSOR_SCALES,
    ) -> CacheBytes:
        """Return a cache of the right size whose every byte is `fill`, nan by default; see `caches.allocate`."""
        return allocate(
            mode,
            pages=self.pages,
            page=self.page,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
            layout=self.layout,
            device=self.k.device,
            fill=fill,
            lead=lead,
            gap=gap,
            fp8=fp8,
            tensor_scales=tensor_scales,
        )

    def filled(
        self,
        mode: Mode,
        *,
        fill: int | None = None,
        lead: int = 0,
        gap: int = 0,
        fp8: str = formats.E4M3FN,
        tensor_scales: Sequence[float] = TENSOR_SCALES,
    ) -> CacheBytes:
        """Return a cache that the oracle's writer has filled with k and v."""
        cache = self.cache(mode, fill=fill, lead=lead, gap=gap, fp8=fp8, tensor_scales=tensor_scales)
        store(cache, self.k, self.v, self.slots)
        return cache

    def strided(self) -> Batch:
        """Return the same batch with q, k and v inside wider tensors full of nan and 1e30."""
        return replace(self, q=_embedded(self.q), k=_embedded(self.k), v=_embedded(self.v))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device: the same values, where building it there gives others."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("q", "k", "v", "slots", "row_sequence", "page_table", "seq_lens", "cu_q")
        }
        return replace(self, **moved, features=self.features.to(device))


def _embedded(x: torch.Tensor) -> torch.Tensor:
    rows, heads, width = x.shape
    wide = torch.full((rows, heads + 1, width + 16), float("nan"), dtype=x.dtype, device=x.device)
    # fp16 has no 1e30; its largest finite value is as wrong.
    wide[:, heads:] = min(1e30, torch.finfo(x.dtype).max)
    inner = wide[:, :heads, 8 : 8 + width]
    inner.copy_(x)
    return inner


def _query_length(kind: Kind, context: int, index: int, turn: int, words: tuple[str, ...]) -> int:
    if kind == "decode":
        return min(context, DRAFTS[(index + turn) % len(DRAFTS)]) if "multi_query_split" in words else 1
    whole = min(context, PREFILL_QUERIES)
    if kind == "prefill":
        return whole
    return (1, min(context, 5), whole)[index % 3]


def build(
    kind: Kind,
    *,
    head_size: int,
    group: int = 4,
    kv_heads: int = 2,
    page: int = 16,
    dtype: str = "bf16",
    contexts: Sequence[int] = CONTEXTS,
    inputs: Sequence[str] = INPUTS,
    seeds: Sequence[int] = (0,),
    layout: LayoutId = PLANAR,
    device: torch.device | str = "cpu",
    padding: int = 3,
    scale: float | None = None,
    features: Sequence[str] = ("causal",),
    window: int = WINDOWS[0],
) -> Batch:
    """Return a batch with one sequence for each (context, input, seed).

    decode: one query a sequence. prefill: the last min(context, 64) tokens, so short contexts are whole. mixed: one,
    five and up to 64 queries by turns, three empty sequences (of one, three and no query rows) and two query rows
    that belong to no sequence. A context of 0 gives an empty sequence in every kind. `padding` rows of k and v get
    slot -1 and as many again get no slot. `scale`: softmax scale, by default head_size ** -0.5. `features`: words of a
    request, for which `Batch.features` gets parameters (softcap 5, sinks of N(0,1), alibi slopes 2^-(i+1), random
    prefix ranges, causal by turns, and `window`, which counts only where the word is there); multi_query_split gives
    decode sequences up to 8 query rows. Raises UsageError for words that do not go together or that no batch has.
    """
    words = words_of(features)
    cells = [(context, name, seed) for seed in seeds for name in inputs for context in contexts]
    plan = [
        (c, name, seed, max(_query_length(kind, c, i, i // len(contexts), words), 0 if c else 1))
        for i, (c, name, seed) in enumerate(cells)
    ]
    if kind == "mixed":
        for place, queries in ((len(plan), 3), (len(plan) // 2, 0), (0, 1)):
            plan.insert(place, (0, EMPTY, 0, queries))
    stray = 2 if kind == "mixed" else 0

    rows, tokens = sum(c for c, *_ in plan), sum(m for *_, m in plan) + stray
    of = DTYPES[dtype]
    q = torch.zeros((tokens, group * kv_heads, head_size), dtype=of, device=device)
    k = torch.zeros((rows + 2 * padding, kv_heads, head_size), dtype=of, device=device)
    v = torch.zeros_like(k)
    needed = [-(-c // page) for c, *_ in plan]
    # The order of pages is drawn on the host, so that it is the same on every device.
    # The page that nobody writes is the last one: a slot of -1 that is not skipped lands there.
    order = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(len(plan) + sum(needed)))
    table = torch.full((len(plan), max([*needed, 1])), sum(needed), dtype=torch.int64)
    slots = torch.full((rows + padding,), -1, dtype=torch.int64)
    owner = torch.full((rows + 2 * padding,), -1, dtype=torch.int64)

    row = token = used = 0
    for index, (context, name, seed, queries) in enumerate(plan):
        drawn = values(
            "normal" if name == EMPTY else name,
            context=context,
            queries=queries,
            q_heads=group * kv_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            seed=seed,
            device=device,
        )
        q[token : token + queries] = drawn.q
        k[row : row + context], v[row : row + context] = drawn.k, drawn.v
        own = order[used : used + needed[index]]
        table[index, : needed[index]] = own
        slots[row : row + context] = (own[:, None] * page + torch.arange(page)).reshape(-1)[:context]
        owner[row : row + context] = index
        row, token, used = row + context, token + queries, used + needed[index]
    for spare in (q[token:], k[rows:], v[rows:]):
        spare.fill_(1.0)  # a padding row that is stored or attended after all must be seen
    if padding:
        slots, owner, k, v = _scattered(slots, owner, k, v, rows, padding)

    contexts, q_lens = tuple(c for c, *_ in plan), tuple(m for *_, m in plan)
    drawn_features = draw(
        words,
        contexts=contexts,
        q_lens=q_lens,
        q_heads=group * kv_heads,
        window=window,
        seed=seeds[0] if seeds else 0,
        device=device,
    )
    word = drawn_features.word
    return Batch(
        labels=tuple(Label(group, kind, str(layout), name, c, seed, word) for c, name, seed, _ in plan),
        q=q,
        k=k,
        v=v,
        slots=slots.to(device),
        row_sequence=owner.to(device),
        page_table=table.to(torch.int32).to(device),
        seq_lens=torch.tensor([c for c, *_ in plan], dtype=torch.int32).to(device),
        cu_q=torch.tensor([0, *q_lens], dtype=torch.int64).cumsum(0).to(torch.int32).to(device),
        contexts=contexts,
        q_lens=q_lens,
        pages=sum(needed) + 1,
        page=page,
        dtype=dtype,
        layout=layout,
        scale=head_size**-0.5 if scale is None else scale,
        features=drawn_features,
    )


def _scattered(
    slots: torch.Tensor, owner: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exchange the rows of slot -1 with rows spread over the batch, so that a skipped row has neighbours."""
    for i in range(min(padding, rows)):
        a, b = rows * (2 * i + 1) // (2 * padding), rows + i
        swap = torch.tensor([a, b])
        slots[swap], owner[swap] = slots[swap.flip(0)], owner[swap.flip(0)]
        there, back = swap.to(k.device), swap.flip(0).to(k.device)
        k[there], v[there] = k[back], v[back]
    return slots, owner, k, v
