"""`kvreg tune report`: what the journal knows, one row a variant, shape and bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.cli import plots, render
from kvreg.cli.tune_view import changed, outcomes
from kvreg.core.errors import UsageError, wrong

if TYPE_CHECKING:
    from kvreg_tuning.journal import Known
    from kvreg_tuning.outcomes import Trial
    from kvreg_tuning.subjects import Subject


@dataclass(slots=True)
class Row:
    """All trials of one bucket that were made with one kernel and one set of versions."""

    subject: Subject
    bucket: str
    identity: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)

    @property
    def tried(self) -> list[Trial]:
        """Trials that were run; the first is the default's."""
        return [each for each in self.trials if each.result != "constraint"]

    @property
    def best(self) -> Trial | None:
        """The fastest right one."""
        return min((each for each in self.trials if each.timed), key=lambda each: each.us or 0.0, default=None)

    def total(self, stage: str) -> float:
        """Return the seconds that a stage took in all trials."""
        return float(sum(getattr(each, f"{stage}_s") for each in self.trials))


def rows(known: Iterable[Known], device: str | None, head_sizes: Sequence[int]) -> list[Row]:
    """Gather a journal's trials, in the order in which they were made."""
    found: dict[tuple[Subject, str, str], Row] = {}
    for each in known:
        if device not in (None, each.subject.device) or (head_sizes and each.subject.head_size not in head_sizes):
            continue
        key = (each.subject, each.trial.bucket, repr(sorted(each.identity.items())))
        row = found.setdefault(key, Row(each.subject, each.trial.bucket, dict(each.identity)))
        row.trials.append(each.trial)
    return list(found.values())


def show(found: Sequence[Row], path: Path, as_json: bool) -> None:
    """Print the rows."""
    if as_json:
        render.document({"schema": 1, "journal": str(path), "results": [_document(row) for row in found]})
        return
    if not found:
        render.line(f"{path} holds no trial of these; `kvreg tune` makes some")
        return
    render.table(
        (
            "variant and shape",
            "bucket",
            "default",
            "best trial",
            "launch parameters",
            "trials",
            "compile, gate, bench",
        ),
        [_row(row) for row in found],
    )
    render.line()
    render.line(f"journal {path}; the best trial was not raced: `kvreg tuned list` shows winners")


def _row(row: Row) -> tuple[object, ...]:
    best, default = row.best, row.tried[0] if row.tried else None
    seconds = ", ".join(f"{row.total(stage):.1f}" for stage in ("compile", "gate", "bench"))
    return (
        row.subject,
        row.bucket,
        f"{default.us:.4g} us" if default is not None and default.us else "-",
        f"{best.us:.4g} us" if best is not None and best.us else "-",
        changed(best.config, default.config) if best is not None and default is not None else "-",
        outcomes(Counter(str(each.result) for each in row.trials)),
        f"{seconds} s",
    )


def _document(row: Row) -> dict[str, Any]:
    return {
        **row.subject.to_json(),
        "features": list(row.subject.features),
        "bucket": row.bucket,
        "identity": row.identity,
        "seconds": {stage: round(row.total(stage), 3) for stage in ("compile", "gate", "bench")},
        "trials": [
            {
                "config": dict(each.config),
                "result": each.result,
                "reason": each.reason,
                "us": each.us,
                "spread": each.spread,
                "launch": each.launch,
            }
            for each in row.trials
        ],
    }


def draw(found: Sequence[Row], path: Path) -> None:
    """Draw the time of each trial and the best so far; raises UsageError without matplotlib or a place to write to."""
    make = plots.require(path)
    timed = [row for row in found if row.best is not None]
    if not timed:
        raise UsageError(wrong("--plot", required="a trial with a time", found="none", remedy="run `kvreg tune`"))
    figure = make(figsize=(8, 3 * len(timed)), layout="constrained")
    for axes, row in zip(figure.subplots(len(timed), squeeze=False)[:, 0], timed, strict=True):
        times = [(place, each.us) for place, each in enumerate(row.tried) if each.us is not None]
        places, values = zip(*times, strict=True)
        least = [min(values[: end + 1]) for end in range(len(values))]
        axes.plot(places, values, ".", label="trial")
        axes.step(places, least, where="post", label="best so far")
        axes.axhline(values[0], linestyle=":", color="gray", label="default")
        axes.set(title=f"{row.subject} {row.bucket}", xlabel="trial", ylabel="us", yscale="log")
        axes.legend()
    plots.save(figure, path)
