"""One validation from its work list to its traces: compile, judge, time, record; every step resumes from the journal.

A cell that hangs, crashes or is wrong is a row like any other and the run goes on. Only a device that no longer
answers ends it early. A trace is written for a variant and head size whose every cell has passed.

Longer than its neighbours: compiling, judging, timing and recording read and write one journal.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from kvreg.core import traces
from kvreg.core.errors import DeviceUnavailable
from kvreg.core.kernelhash import kernel_hash
from kvreg.core.modes import Mode
from kvreg.core.variants import Variant
from kvreg.validation import machine as machines
from kvreg.validation import records
from kvreg.validation.calls import request_of
from kvreg.validation.cells import WHOLE_MODES, Cell
from kvreg.validation.journal import Journal, key_of
from kvreg.validation.machine import Machine
from kvreg.validation.strength import kept_instead
from kvreg_tuning.pool import Task, run_all
from kvreg_tuning.worker import POISONED, Outcome

CELL_TIMEOUT_S = {"card": 120.0, "host": 1800.0}
"""A cell takes a card well under a second once compiled; one of 8192 tokens takes a busy host minutes."""

COMPILE_TIMEOUT_S = 300.0
"""The slowest known compilation (gfx11, Triton 3.6) takes 32 s; a cell compiles a handful of kernels."""

TIMING_TIMEOUT_S = 180.0

CARD_WORKERS = 8
"""Processes that judge on each card: each waits for the host most of the time, and an error poisons only its own."""

COMMON_HEADS = (128, 96, 64, 256)
"""Head sizes that most models have, the commonest first."""

GIVE_UP = {"timeout": 2, "crash": 3}
"""Cells of one variant and head size that may end so before its other cells are skipped: each costs a time limit or
the start of a process, and one is enough to refuse the kernel."""

JUDGE = "kvreg.validation.work:judge"
COMPILE = "kvreg.validation.work:compile_cell"
TIME = "kvreg.validation.timings:time_variant"
BANDWIDTH = "kvreg.validation.timings:read_bandwidth"


class View(Protocol):
    """What a run tells whoever watches."""

    def stage(self, name: str, total: int, done: int) -> None:
        """Say that a stage begins, `done` of its `total` parts known from the journal."""

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Say that one part is finished; `line` is its journal line."""

    def note(self, text: str) -> None:
        """Say something else."""


class Silent:
    """A view that shows nothing."""

    def stage(self, name: str, total: int, done: int) -> None:
        """Show nothing."""

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one variant at one head size."""

    variant: Variant
    head_size: int
    status: str
    """passed, wrong, unfinished."""
    lines: tuple[Mapping[str, Any], ...]
    trace: Path | None = None
    """Where the trace was written."""
    trace_id: str | None = None
    kept: str | None = None
    """Why no trace was written for a variant that passed."""

    @property
    def failed(self) -> tuple[Mapping[str, Any], ...]:
        """The lines of cells that did not pass."""
        return tuple(line for line in self.lines if line["status"] != "ok")


@dataclass(slots=True)
class Run:
    """One validation; its methods are the stages, each of which may be called again."""

    machine: Machine
    variants: tuple[Variant, ...]
    cells: tuple[Cell, ...]
    journal: Journal
    command: str
    view: View = field(default_factory=Silent)
    jobs: int = 1
    deadline: float | None = None
    """On the clock of time.monotonic; stages end cleanly before it."""
    cell_timeout_s: float | None = None
    smoke: bool = False
    """Times at tiny shapes, to try the path."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    cut_off: bool = False
    cards: tuple[Mapping[str, str], ...] = ({},)
    """What shows a worker one of the cards alike, for each of them; together they take the parts of a stage."""

    def probe(self) -> Mapping[str, Any]:
        """Ask the device for its versions; raises DeviceUnavailable when it gives no answer."""
        probed = machines.probe(self.machine)
        self.versions = machines.versions(self.machine, probed)
        self.cards = machines.cards(self.machine, probed)
        for variant in self.variants:
            self.hash_of(variant)
        return probed

    def identity(self, variant: str) -> dict[str, Any]:
        """Return all that a variant's results depend on beside the cell."""
        return {
            "device": self.machine.device.key,
            "numerics": self.machine.numerics,
            "kernel_hash": self.hashes[variant],
            **self.versions,
        }

    def hash_of(self, variant: Variant) -> str:
        """Return a variant's kernel hash, computed once."""
        known = str(variant.id)
        if known not in self.hashes:
            self.hashes[known] = kernel_hash(variant)
        return self.hashes[known]

    def compile(self, processes: int | None = None) -> None:
        """Compile what the open cells launch, in parallel processes; failures show again when the cell is judged."""
        if not self.machine.is_card:
            return
        distinct: dict[tuple[Any, ...], Cell] = {}
        for cell in self._open():
            distinct.setdefault(self.compiled_for(cell), cell)
        tasks = [
            Task(COMPILE, {"cell": cell.to_json(), **self._where()}, COMPILE_TIMEOUT_S) for cell in distinct.values()
        ]
        self.view.stage("compile", len(tasks), 0)
        count = processes or max(1, (os.cpu_count() or 2))
        cells = list(distinct.values())
        for index, outcome in self.outcomes(tasks, count):
            cell = cells[index]
            self.view.advance(str(cell), {"status": outcome.status, "error": outcome.error})

    def compiled_for(self, cell: Cell) -> tuple[Any, ...]:
        """Return what the kernels of a cell are compiled for: cells that have it in common launch the same ones.

        Head counts are run-time values; what they change of the launch parameters is in the config. Kernels that only
        one platform has also know how many sequences share and whether each has one query row; those of int4, in how
        many subsets the rows that a group leaves free take the keys (kvreg_cuda.joining).
        """
        variant = next(each for each in self.variants if str(each.id) == cell.variant)
        config = variant.default_config(self.machine.device, request_of(cell, self.machine.device.key))
        shape = (cell.layout, cell.dtype, cell.page, cell.features, cell.thorough)
        rows_of_group = (cell.group - 1).bit_length() if variant.mode in WHOLE_MODES else 0
        own = (cell.kind, cell.sequences, rows_of_group) if variant.needs_card else ()
        return (cell.variant, cell.head_size, *shape, *own, *sorted(config.items()))

    def judge(self) -> None:
        """Judge every open cell; raises DeviceUnavailable when the device is lost."""
        cells = self._open()
        self.view.stage("gate", len(self.cells), len(self.cells) - len(cells))
        limit = self.cell_timeout_s or CELL_TIMEOUT_S["card" if self.machine.is_card else "host"]
        ended: Counter[tuple[str, int, str]] = Counter()

        def skip(index: int) -> str | None:
            cell = cells[index]
            for status, most in GIVE_UP.items():
                if ended[cell.variant, cell.head_size, status] >= most:
                    return f"not run after {most} cells of this variant and head size ended in a {status}"
            return None

        tasks = [
            Task(JUDGE, {"cell": cell.to_json(), **self._where()}, limit, bundle=f"{cell.mode} {cell.rows}")
            for cell in cells
        ]
        for index, outcome in self.outcomes(
            tasks, CARD_WORKERS * len(self.cards) if self.machine.is_card else self.jobs, skip
        ):
            cell = cells[index]
            ended[cell.variant, cell.head_size, outcome.status] += 1
            line = self.journal.append(self._key(cell), self._line(cell, outcome))
            self.view.advance(str(cell), line)
            self.require_device(outcome)

    def time(self) -> None:
        """Time the variants of the cells, and those of mode none for comparison, where a card is."""
        if not (self.machine.is_card or self.smoke):
            return
        wanted = [each for each in self.timed() if self.journal.get(self._timing_key(*each)) is None]
        self.view.stage("timings", len(self.timed()), len(self.timed()) - len(wanted))
        bandwidth = self._bandwidth() if wanted else None
        tasks = [
            Task(
                TIME,
                {
                    "variant": str(variant.id),
                    "head_size": size,
                    "bandwidth": bandwidth,
                    "smoke": self.smoke,
                    **self._where(),
                },
                TIMING_TIMEOUT_S,
                bundle=f"d{size}",  # what is compared is timed on one card
            )
            for variant, size in wanted
        ]
        for index, outcome in self.outcomes(tasks, len(self.cards)):
            variant, size = wanted[index]
            line = {"status": outcome.status, "error": outcome.error, "timing": str(variant.id), "head_size": size}
            if outcome.status == "ok":
                self.journal.append(self._timing_key(variant, size), {**line, "points": outcome.value})
            self.view.advance(f"{variant.id} d{size}", line)
            self.require_device(outcome)

    def verdicts(self) -> list[Verdict]:
        """Return what the journal says of every variant and head size."""
        found = []
        for variant, size in self._pairs():
            cells = [cell for cell in self.cells if (cell.variant, cell.head_size) == (str(variant.id), size)]
            lines = [line for cell in cells if (line := self.journal.get(self._key(cell))) is not None]
            wrong = any(line["status"] != "ok" for line in lines)
            status = "wrong" if wrong else "passed" if len(lines) == len(cells) else "unfinished"
            found.append(Verdict(variant, size, status, tuple(lines)))
        return found

    def write(self, folder: Callable[[Variant], Path]) -> list[Verdict]:
        """Write the traces of what has passed below the folder of each variant; returns every verdict."""
        found = self.verdicts()
        return [self._trace(each, folder(each.variant)) if each.status == "passed" else each for each in found]

    def _trace(self, verdict: Verdict, folder: Path) -> Verdict:
        variant, size = verdict.variant, verdict.head_size
        path = traces.trace_file(folder, self.machine.device.key, variant.mode, size, variant.op, str(variant.id))
        found = records.record(
            variant,
            size,
            verdict.lines,
            self.machine,
            kernel_hash=self.hashes[str(variant.id)],
            versions=self.versions,
            command=self.command,
            timings=self.timing_records(variant, size),
        )
        kept = kept_instead(path, found)
        if kept is not None:
            return _with(verdict, kept=kept)
        log = traces.write_log(self._log_lines(verdict), path)
        trace = traces.seal({**found, "log": log.model_dump()})
        traces.write_trace(trace, path)
        return _with(verdict, trace=path, trace_id=trace.id)

    def _log_lines(self, verdict: Verdict) -> Iterator[Mapping[str, Any]]:
        yield from verdict.lines
        line = self.journal.get(self._timing_key(verdict.variant, verdict.head_size))
        if line is not None:
            yield line

    def timing_records(self, variant: Variant, size: int) -> list[dict[str, Any]]:
        """Return the timing records of a trace, each beside the same point in mode none."""
        base = self._partner(variant)
        beside = {_shape(point): point["us"] for point in self._points(base, size)} if base is not None else {}
        return [
            {
                **{name: point[name] for name in ("batch", "context", "group", "us", "spread", "fraction_of_limit")},
                "bf16_us": beside.get(_shape(point)),
                "bf16_variant": str(base.id) if base is not None and _shape(point) in beside else None,
            }
            for point in self._points(variant, size)
        ]

    def _points(self, variant: Variant, size: int) -> list[dict[str, Any]]:
        line = self.journal.get(self._timing_key(variant, size))
        return list(line["points"]) if line is not None else []

    def _partner(self, variant: Variant) -> Variant | None:
        """Return the variant of mode none that a variant is timed beside; None for one of that mode."""
        if variant.mode is Mode.NONE:
            return None
        return next((v for v in self._bases() if v.op is variant.op and v.family == variant.family), None)

    def _bases(self) -> list[Variant]:
        return [each for each in self.machine.all_variants() if each.mode is Mode.NONE]

    def timed(self) -> list[tuple[Variant, int]]:
        """Return what is timed: every variant and head size, and those of mode none that stand beside them."""
        pairs = self._pairs()
        beside = [(base, size) for variant, size in pairs if (base := self._partner(variant)) is not None]
        return sorted({(str(v.id), size): (v, size) for v, size in (*beside, *pairs)}.values(), key=_timing_order)

    def _timing_key(self, variant: Variant, size: int) -> str:
        self.hash_of(variant)
        of = {"timing": str(variant.id), "head_size": size, "smoke": self.smoke}
        return key_of({**of, **self.identity(str(variant.id))})

    def known_bandwidth(self) -> float | None:
        """Return the device's read bandwidth in bytes per second as the journal has it."""
        line = self.journal.get(self._bandwidth_key())
        return float(line["bandwidth"]["bytes_per_second"]) if line is not None else None

    def _bandwidth_key(self) -> str:
        return key_of({"bandwidth": self.machine.device.key, "smoke": self.smoke, **self.versions})

    def _bandwidth(self) -> float | None:
        """Return the device's read bandwidth, measured once a journal."""
        key = self._bandwidth_key()
        line = self.journal.get(key)
        if line is None:
            arguments: dict[str, Any] = {"place": self.machine.place}
            if self.smoke:
                arguments["size"] = 1 << 24
            for _, outcome in self.outcomes([Task(BANDWIDTH, arguments, TIMING_TIMEOUT_S)], 1):
                if outcome.status != "ok":
                    self.view.note(
                        f"read bandwidth: {outcome.status}: {outcome.error}; times have no share of the limit"
                    )
                    self.require_device(outcome)
                    return None
                self.journal.append(key, {"status": "ok", "bandwidth": outcome.value})
        return self.known_bandwidth()

    def _pairs(self) -> list[tuple[Variant, int]]:
        named = {str(variant.id): variant for variant in self.variants}
        pairs = dict.fromkeys((cell.variant, cell.head_size) for cell in self.cells)
        return sorted(
            ((named[variant], size) for variant, size in pairs),
            key=lambda pair: (pair[0].mode.id, pair[1], str(pair[0].id)),
        )

    def _open(self) -> list[Cell]:
        """Return the cells without a passed line; failed ones are tried again."""
        return [cell for cell in self.cells if (self.journal.get(self._key(cell)) or {}).get("status") != "ok"]

    def _key(self, cell: Cell) -> str:
        return key_of({"cell": cell.to_json(), **self.identity(cell.variant)})

    def _where(self) -> dict[str, str]:
        return {"device": self.machine.device.key, "place": self.machine.place}

    def _line(self, cell: Cell, outcome: Outcome) -> dict[str, Any]:
        ended = datetime.now(UTC)
        started = datetime.fromtimestamp(ended.timestamp() - outcome.elapsed_s, UTC)
        line: dict[str, Any] = {
            "cell": cell.to_json(),
            "started": _utc(started),
            "ended": _utc(ended),
            "elapsed_s": round(outcome.elapsed_s, 3),
            **self.identity(cell.variant),
        }
        if outcome.status == "ok":
            value = outcome.value
            status = "ok" if value["ok"] else "wrong"
            shown = {name: value[name] for name in ("rows", "failures", "resources")}
            return {**line, "status": status, "error": "; ".join(value["failures"][:1]), **shown}
        return {**line, "status": outcome.status, "error": outcome.error, "output": outcome.output, "rows": []}

    def outcomes(
        self, tasks: Sequence[Task], workers: int, skip: Callable[[int], str | None] = lambda index: None
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield outcomes until the deadline."""
        if not tasks:
            return
        environment = {**self.machine.environment, "KVREG_DEVICE": self.machine.device.key}
        done = run_all(
            tasks, workers=workers, environment=environment, own=self.cards, deadline=self.deadline, skip=skip
        )
        count = 0
        try:
            for index, outcome in done:
                count += 1
                yield index, outcome
        finally:
            done.close()
            if self.deadline is not None and count < len(tasks) and time.monotonic() >= self.deadline:
                self.cut_off = True

    def require_device(self, outcome: Outcome) -> None:
        """Raise DeviceUnavailable when a failed task has left a card that gives no answer."""
        suspect = outcome.status in ("crash", "timeout") or POISONED.search(outcome.error + outcome.traceback)
        if not suspect or not self.machine.is_card:
            return
        try:
            machines.probe(self.machine)
        except DeviceUnavailable as error:
            raise DeviceUnavailable(f"{error.message}; finished cells are kept in {self.journal.path}") from error


def _with(verdict: Verdict, **changes: Any) -> Verdict:
    return replace(verdict, **changes)


def _shape(point: Mapping[str, Any]) -> tuple[int, int, int]:
    return point["batch"], point["context"], point["group"]


def _timing_order(pair: tuple[Variant, int]) -> tuple[int, int, bool, int, str]:
    """Order what is timed so that a run which is cut off has timed the commonest first, `none` before its ratios."""
    variant, size = pair
    rank = COMMON_HEADS.index(size) if size in COMMON_HEADS else len(COMMON_HEADS)
    return rank, size, variant.mode not in WHOLE_MODES, variant.mode.id, str(variant.id)


def _utc(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
