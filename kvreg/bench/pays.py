"""From which context on a quantized cache decodes faster than bf16: a sweep over batches and contexts. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvreg.bench import subjects
from kvreg.bench.results import Compared, Row
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Planned
from kvreg.core.devices import Device
from kvreg.core.modes import Mode

CONTEXTS = tuple(256 << power for power in range(10))
"""256 to 131072."""
BATCHES = tuple(1 << power for power in range(7))
"""1 to 64."""
MOST_BYTES = 16 << 30
"""bf16 cache of one point; larger ones are left out."""

HOST_CONTEXTS, HOST_BATCHES = (64, 256, 1024), (1, 2)
"""On the cpu device."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model."""

    q_heads: int
    kv_heads: int
    head_size: int


HEADS = (Heads(32, 32, 96), Heads(32, 8, 128))
"""Phi-3-mini and Llama 3 8B."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One mode at one batch."""

    mode: str
    q_heads: int
    kv_heads: int
    head_size: int
    batch: int
    least_context: int | None
    """It is faster there and at every longer context of the sweep; None where it is not at the longest."""
    ratio_there: float | None
    """How many times faster than the fastest bf16."""
    longest: int
    """Longest context that was measured."""
    ratio_at_longest: float
    best_bf16: str
    """The fastest bf16 at the longest context."""

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.q_heads // self.kv_heads

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return {**asdict(self), "group": self.group}


def sweep(heads: Sequence[Heads], batches: Iterable[int], contexts: Sequence[int], page: int = 16) -> Iterator[Shape]:
    """Yield the decode of each batch and context whose bf16 cache is not too large."""
    pairs = [(batch, context) for batch in batches for context in contexts]
    for of in heads:
        token = Mode.NONE.bytes_per_token_head(of.head_size) * of.kv_heads
        for batch, context in pairs:
            if batch * context * token <= MOST_BYTES:
                name = f"d{of.head_size} {of.q_heads}/{of.kv_heads} b{batch} c{context}"
                yield Shape(name, "decode", (context,) * batch, of.q_heads, of.kv_heads, of.head_size, page)


def plan(shape: Shape, device: Device, modes: Sequence[Mode], *, every: bool, vllm: bool) -> Planned:
    """Return what is measured at a point: kvreg's variants, and of the others what is bf16."""
    whole = subjects.plan(shape, device, modes, every=every, vllm=vllm)
    kept = tuple(each for each in whole.subjects if each.maker == "kvreg" or each.mode == Mode.NONE)
    return replace(whole, subjects=kept)


def answers(found: Iterable[Compared], modes: Sequence[Mode]) -> list[Answer]:
    """Return from where on each mode pays, for the heads and batches of a sweep in their order."""
    series: dict[tuple[Heads, int], list[Compared]] = {}
    for each in found:
        shape = each.shape
        heads = Heads(shape.q_heads, shape.kv_heads, shape.head_size)
        series.setdefault((heads, len(shape.contexts)), []).append(each)
    return [
        answer
        for mode in modes
        if mode is not Mode.NONE
        for (heads, batch), points in series.items()
        if (answer := _answer(mode, heads, batch, points)) is not None
    ]


def _answer(mode: Mode, heads: Heads, batch: int, points: Sequence[Compared]) -> Answer | None:
    """Return one answer; None where the mode or bf16 was timed nowhere."""
    timed = [
        (point.shape.contexts[0], ratio, point)
        for point in points
        if (best := _fastest(point, mode)) is not None and (ratio := point.ratio(best)) is not None
    ]
    if not timed:
        return None
    timed.sort(key=lambda each: each[0])
    longest, last, point = timed[-1]
    paying: tuple[int, float] | None = None
    for context, ratio, _ in reversed(timed):
        if ratio <= 1:
            break
        paying = (context, ratio)
    return Answer(
        mode=mode.value,
        q_heads=heads.q_heads,
        kv_heads=heads.kv_heads,
        head_size=heads.head_size,
        batch=batch,
        least_context=None if paying is None else paying[0],
        ratio_there=None if paying is None else paying[1],
        longest=longest,
        ratio_at_longest=last,
        best_bf16=point.best.kernel if point.best is not None else "",
    )


def _fastest(point: Compared, mode: Mode) -> Row | None:
    """Return kvreg's fastest row of a mode."""
    timed = [row for row in point.rows if row.maker == "kvreg" and row.mode == mode.value and row.is_timed]
    return min(timed, key=lambda row: row.us or 0.0, default=None)
