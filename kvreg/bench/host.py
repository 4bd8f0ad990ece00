"""Host times of eager calls on a quiet host: what is measured, the rows, and running it. Torch-free.

All kernels are compiled before and their processes have ended; then one process measures, and nothing else of kvreg
runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvreg.bench import shapes
from kvreg.bench.driver import MEASURE_TIMEOUT_S, Driver
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Planned, Subject
from kvreg.core.modes import Mode
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

CARD = (
    *(each for each in shapes.DECODE if each.name in ("phi3-mini b32 1k", "llama8b b32 8k")),
    *(each for each in shapes.WRITE if each.name == "write phi3-mini 32"),
    Shape("write llama8b 32", "write", (32,), 8, 8, 128),
)
"""What `kvreg bench --host` measures on a card: decode and write of a step of 32 sequences."""
HOST = tuple(each for each in shapes.HOST if each.work in ("decode", "write") and len(set(each.contexts)) == 1)
"""The same on the cpu device, where the work is in the time."""
SMOKE = tuple(each for each in shapes.SMOKE if each.work in ("decode", "write"))

_MODULE = "kvreg.bench.measuring"


@dataclass(frozen=True, slots=True)
class HostRow:
    """One call at one shape."""

    shape: str
    work: str
    maker: str
    mode: str
    kernel: str
    """A variant's id, a peer's name, or empty where no variant serves."""
    status: str
    """ok, error, crash, timeout, refused."""
    detail: str = ""
    us: float | None = None
    """Median of one eager call, microseconds."""
    spread: float | None = None
    """Width of the middle half of the calls over their median."""
    least: float | None = None
    """The shortest call."""
    calls: int = 0
    running: float | None = None
    """Part of the time in which the measuring thread had a core."""
    load: float | None = None
    """The host's load average before the measurement."""
    cores: int | None = None
    runnable: int | None = None
    """Threads of the host that ran or wanted to."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def run(driver: Driver, planned: Sequence[Planned], modes: Sequence[Mode]) -> list[HostRow]:
    """Measure the host's time of every subject of every shape; rows come shape by shape, in the order of `modes`."""
    parts = [(each.shape, subject) for each in planned for subject in each.subjects]
    compiled = [(shape, subject) for shape, subject in parts if subject.compiles]
    driver.compile(
        [(f"{shape.name}: {subject.name}", driver.compile_task(shape, subject)) for shape, subject in compiled]
    )
    driver.view.stage("host", len(parts), 0)
    found: dict[str, list[HostRow]] = {each.shape.name: [] for each in planned}
    for index, outcome in driver.outcomes([_task(driver, shape, subject) for shape, subject in parts], 1):
        shape, subject = parts[index]
        row = _row(shape, subject, outcome)
        driver.view.advance(f"{shape.name}: {subject.name}", {"status": row.status, "error": row.detail})
        if outcome.status != "ok":
            driver.require_device(outcome)
        found[shape.name].append(row)
    rank = {mode.value: place for place, mode in enumerate(modes)}
    rows: list[HostRow] = []
    for each in planned:
        of_shape = [*found[each.shape.name], *_refused(each)]
        rows += sorted(of_shape, key=lambda row: (rank.get(row.mode, -1), row.maker != "kvreg"))
    return rows


def _task(driver: Driver, shape: Shape, subject: Subject) -> Task:
    arguments = {"shape": shape.to_json(), "subject": subject.to_json(), **driver.where()}
    # One process for all, but for what may end it.
    return Task(f"{_MODULE}:measure_host", arguments, MEASURE_TIMEOUT_S, bundle="" if subject.is_alone else "host")


def _row(shape: Shape, subject: Subject, outcome: Outcome) -> HostRow:
    found: Mapping[str, Any] = outcome.value if outcome.status == "ok" else {"detail": outcome.error}
    return HostRow(
        shape.name, shape.work, subject.maker, subject.mode, subject.name, **{"status": outcome.status, **found}
    )


def _refused(planned: Planned) -> Iterator[HostRow]:
    shape = planned.shape
    for refusal in planned.refusals:
        yield HostRow(shape.name, shape.work, "kvreg", refusal.mode, "", "refused", refusal.reason)
