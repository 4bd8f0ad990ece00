"""Rows of a bench, and what each one comes to beside bf16 in the same run. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Refusal, Subject
from kvreg.core.modes import Mode

LARGEST_E = 1e-2
"""Of a row that is believed. The gate's limit for normal rows is half of it, over far fewer of them; what rounding to
bf16 costs (none, at one row in thousands) lies between."""

FLASHINFER = "flashinfer"
ENOUGH = 0.85
"""Share of the read bandwidth from which kvreg's own bf16 decode stands in for FlashInfer's."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel at one shape."""

    shape: str
    """The shape's name."""
    maker: str
    mode: str
    kernel: str
    """A variant's id, a peer's name, or empty where no variant serves."""
    status: str
    """ok, wrong, error, crash, timeout, refused."""
    detail: str = ""
    us: float | None = None
    """Median of one call, microseconds."""
    spread: float | None = None
    """Width of the middle half of the samples over their median."""
    samples: int = 0
    method: str = ""
    """graph, delay or host; see kvreg_tuning.timing."""
    bytes: int | None = None
    """What the call cannot but move; None for prefill, which arithmetic limits."""
    host_us: float | None = None
    """Median of the eager Python call on the host, the device not waited for."""
    e: float | None = None
    """Worst judged row against fp64 attention over the cache that it read."""
    config: Mapping[str, int] | None = None
    config_source: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether its time counts."""
        return self.status == "ok" and self.us is not None

    @property
    def bytes_per_second(self) -> float | None:
        """Rate at which the bytes were moved."""
        return self.bytes / (self.us * 1e-6) if self.bytes and self.us else None


def row_of(shape: Shape, subject: Subject, found: Mapping[str, Any]) -> Row:
    """Return the row of what `measuring.measure` gave, wrong where its error is too large to be rounding.

    The limit holds for kvreg's variants and for everything in bf16: a peer's quantized kernel is not judged here.
    """
    e, judged = found.get("e"), subject.maker == "kvreg" or subject.mode == Mode.NONE
    values = {name: found[name] for name in found if name not in ("status", "detail")}
    status, detail = found["status"], found.get("detail", "")
    if status == "ok" and judged and e is not None and not e <= LARGEST_E:
        status, detail = "wrong", f"required e at most {LARGEST_E:g}, found {e:.3g}"
    return Row(
        shape=shape.name,
        maker=subject.maker,
        mode=subject.mode,
        kernel=subject.name,
        status=status,
        detail=detail,
        config=subject.config,
        config_source=subject.source,
        **values,
    )


def failed(shape: Shape, subject: Subject, status: str, detail: str) -> Row:
    """Return the row of a subject whose process ended."""
    return row_of(shape, subject, {"status": status, "detail": detail})


def refused(shape: Shape, refusal: Refusal) -> Row:
    """Return the row of a mode that no variant serves."""
    return Row(shape.name, "kvreg", refusal.mode, "", "refused", refusal.reason)


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of one shape and the bf16 that they are compared with."""

    shape: Shape
    rows: tuple[Row, ...]
    bandwidth: float | None
    """Bytes per second read in this run."""

    @property
    def best(self) -> Row | None:
        """The fastest bf16 of the run at this shape, whoever made it."""
        timed = [row for row in self.rows if row.mode == Mode.NONE and row.is_timed]
        return min(timed, key=lambda row: row.us or 0.0, default=None)

    @property
    def is_marked(self) -> bool:
        """Whether the ratios are to be taken with care: no FlashInfer, and kvreg's bf16 far from the card's limit."""
        timed = [row for row in self.rows if row.is_timed]
        on_a_card = any(row.method != "host" for row in timed)
        if not on_a_card or self.shape.work == "write" or any(row.maker == FLASHINFER for row in timed):
            return False
        own = [self.share(row) or 0.0 for row in self.rows if (row.maker, row.mode) == ("kvreg", Mode.NONE)]
        return not any(share >= ENOUGH for share in own)

    def share(self, row: Row) -> float | None:
        """Return the part of the measured read bandwidth that a row reaches."""
        rate = row.bytes_per_second
        return rate / self.bandwidth if rate is not None and self.bandwidth else None

    def ratio(self, row: Row) -> float | None:
        """Return how many times faster than the best bf16 a row is."""
        best = self.best
        if best is None or not row.is_timed:
            return None
        return (best.us or 0.0) / (row.us or 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the shape with its rows as a JSON object."""
        best = self.best
        return {
            "name": self.shape.name,
            "work": self.shape.work,
            "sequences": len(self.shape.contexts),
            "least_context": min(self.shape.contexts),
            "most_context": max(self.shape.contexts),
            "tokens": self.shape.tokens,
            "queries": sum(self.shape.queries),
            "q_heads": self.shape.q_heads,
            "kv_heads": self.shape.kv_heads,
            "head_size": self.shape.head_size,
            "page": self.shape.page,
            "best_bf16": None if best is None else {"kernel": best.kernel, "us": best.us},
            "marked": self.is_marked,
            "rows": [
                {**asdict(row), "share": self.share(row), "ratio": self.ratio(row)} | _plain_config(row)
                for row in self.rows
            ],
        }


def _plain_config(row: Row) -> dict[str, Any]:
    return {"config": None if row.config is None else dict(row.config)}


@dataclass(slots=True)
class Results:
    """Everything that one bench has found."""

    bandwidth: float | None = None
    shapes: list[Compared] = field(default_factory=list)

    def rows(self) -> Iterable[Row]:
        """Yield every row."""
        return (row for each in self.shapes for row in each.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        return {
            "read_bandwidth": self.bandwidth,
            "largest_e": LARGEST_E,
            "shapes": [each.to_json() for each in self.shapes],
        }


def ordered(rows: Iterable[Row], modes: Sequence[Mode]) -> tuple[Row, ...]:
    """Return the rows of a shape by mode, kvreg's first in each."""
    rank = {mode.value: place for place, mode in enumerate(modes)}
    return tuple(sorted(rows, key=lambda row: (rank.get(row.mode, -1), row.maker != "kvreg", row.kernel)))
