"""What a step takes with each kind of cache, beside the fastest bf16 step of the same run. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvreg.bench.results import LARGEST_E
from kvreg.bench.step.shapes import StepShape
from kvreg.bench.subjects import Refusal, Subject
from kvreg.core.modes import Mode

LARGEST_STORED = 0.25
"""Relative distance of stored rows from those computed: 4 bits lose about a tenth of N(0,1) rows, a row that was not
stored all of itself."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """The step with one kind of attention."""

    maker: str
    mode: str
    kernel: str
    """The decode variant's id, a peer's name, or empty where no variant serves."""
    status: str
    """ok, wrong, error, crash, timeout, refused."""
    detail: str = ""
    us: float | None = None
    """Median of a step, microseconds."""
    spread: float | None = None
    """Width of the middle half of the samples over their median."""
    samples: int = 0
    method: str = ""
    """graph, delay or host; see kvreg_tuning.timing."""
    rest_us: float | None = None
    """Median of the same step with its attention left out."""
    cache_bytes: int | None = None
    """Of all layers."""
    finite: bool | None = None
    """Whether hidden state and logits are."""
    e: float | None = None
    """Worst judged row of the last layer's attention against fp64 over the cache that it read."""
    stored: float | None = None
    """Relative L2 distance of the newest rows in the last layer's cache from those that the step computed."""
    hidden: float | None = None
    """Relative L2 distance of the last hidden state from that of kvreg's bf16."""
    alone: bool = False
    """Whether it was timed in a process of its own, and not by turns with the others."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """Variant id by op."""
    config: Mapping[str, int] | None = None
    """Launch parameters of the decode."""
    config_source: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether its time counts."""
        return self.status == "ok" and self.us is not None

    @property
    def attention_us(self) -> float | None:
        """What the step takes longer than without its attention, microseconds; the write belongs to both."""
        return self.us - self.rest_us if self.us is not None and self.rest_us is not None else None

    @property
    def attention_share(self) -> float | None:
        """The same as a part of the step."""
        part = self.attention_us
        return part / self.us if part is not None and self.us else None


@dataclass(frozen=True, slots=True)
class StepResults:
    """The rows of one step."""

    shape: StepShape
    rows: tuple[StepRow, ...]

    @property
    def best(self) -> StepRow | None:
        """The fastest bf16 step, whoever made its attention."""
        timed = [row for row in self.rows if row.mode == Mode.NONE and row.is_timed]
        return min(timed, key=lambda row: row.us or 0.0, default=None)

    def ratio(self, row: StepRow) -> float | None:
        """Return how many times faster than the fastest bf16 step a step is."""
        best = self.best
        if best is None or not row.is_timed:
            return None
        return (best.us or 0.0) / (row.us or 1.0)

    def tokens_per_second(self, row: StepRow) -> float | None:
        """Return the tokens of all sequences that steps of this length give in a second."""
        return None if row.us is None else self.shape.batch / (row.us * 1e-6)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        best = self.best
        return {
            "step": {**self.shape.to_json(), "weight_bytes": self.shape.weight_bytes},
            "largest_e": LARGEST_E,
            "largest_stored": LARGEST_STORED,
            "best_bf16": None if best is None else {"kernel": best.kernel, "us": best.us},
            "rows": [self.row_json(row) for row in self.rows],
        }

    def row_json(self, row: StepRow) -> dict[str, Any]:
        """Return a row with what follows from it."""
        return asdict(row) | {
            "attention_us": row.attention_us,
            "attention_share": row.attention_share,
            "tokens_per_second": self.tokens_per_second(row),
            "ratio": self.ratio(row),
        }


def row_of(subject: Subject, found: Mapping[str, Any], *, alone: bool = False) -> StepRow:
    """Return the row of what `measuring.measure` gave, wrong where the step cannot be believed."""
    values = {name: found[name] for name in found if name not in ("status", "detail")}
    status, detail = found["status"], found.get("detail", "")
    if status == "ok" and (fault := _fault(found)):
        status, detail = "wrong", fault
    return StepRow(
        maker=subject.maker,
        mode=subject.mode,
        kernel=subject.name,
        status=status,
        detail=detail,
        alone=alone,
        config=subject.config,
        config_source=subject.source,
        **values,
    )


def refused(refusal: Refusal) -> StepRow:
    """Return the row of a mode that no variant serves."""
    return StepRow("kvreg", refusal.mode, "", "refused", refusal.reason)


def ordered(rows: Sequence[StepRow], modes: Sequence[Mode]) -> tuple[StepRow, ...]:
    """Return rows by mode, bf16 and kvreg's first."""
    rank = {mode.value: place for place, mode in enumerate(modes)}
    return tuple(sorted(rows, key=lambda row: (rank.get(row.mode, -1), row.maker != "kvreg")))


def _fault(found: Mapping[str, Any]) -> str:
    """Return why a step is not believed, empty where it is."""
    if not found["finite"]:
        return "required finite logits and a finite hidden state, found others"
    if not found["e"] <= LARGEST_E:
        return f"required e at most {LARGEST_E:g} in the last layer, found {found['e']:.3g}"
    if not found["stored"] <= LARGEST_STORED:
        return f"required newest rows within {LARGEST_STORED:g} of those computed, found {found['stored']:.3g}"
    return ""
