"""What every stage of `ci/gpu` works with: the machine, its variants, the work list, the journal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvreg
from kvreg.core.errors import UsageError, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Constraints, Variant
from kvreg.validation.cells import HEAD_SIZES, PROFILES, Cell, many_seeds_only, work_list
from kvreg.validation.gpu import tunable
from kvreg.validation.gpu.asked import Options
from kvreg.validation.gpu.session import Session
from kvreg.validation.journal import Journal, key_of
from kvreg.validation.machine import Machine
from kvreg.validation.run import Run
from kvreg_tuning.pool import Task

SEED_HEADS = (64, 96, 128, 256)

RESERVE_S = 25.0
"""Kept of the time limit for the traces and the archive."""
STAGE_TASK_TIMEOUT_S = 180.0


def in_checkout(folder: Path) -> Path:
    """Return where a backend's folder lies in the archive: as in the checkout, so that unpacking there puts it in
    place."""
    root = Path(kvreg.__file__).parent.parent
    return folder.relative_to(root) if folder.is_relative_to(root) else Path(folder.name)


def require_possible(options: Options) -> None:
    """Raise UsageError for a head size and for a workload that are wrong on every machine."""
    any_variant = Constraints()
    for size in options.head_sizes:
        if not any_variant.takes_head_size(size):
            raise _wrong_head_size(size)
    tunable.shapes(options)


def require_work(options: Options, machine: Machine) -> None:
    """Raise UsageError for a variant that nobody knows, a head size without a cell, and what cannot be tuned.

    It makes no file, so that a call which cannot be done leaves nothing behind.
    """
    variants = machine.variants()
    for name in options.only:
        if not any(name in _names(each) for each in variants):
            known = ", ".join(str(each.id) for each in variants)
            raise UsageError(wrong("--only", required=f"one of {known}", found=repr(name), remedy="take one"))
    grid = _grid(options, variants) if options.head_sizes else ()
    for size in options.head_sizes:
        if not any(cell.head_size == size for cell in grid):
            raise _wrong_head_size(size)
    tunable.require_known(options, variants)


def _wrong_head_size(size: int) -> UsageError:
    of = Constraints()
    return UsageError(
        wrong(
            "--head-size",
            required=f"one that a variant serves: {of.head_min} to {of.head_max} in steps of {of.head_step}",
            found=size,
            remedy=f"take one of {', '.join(map(str, HEAD_SIZES))}",
        )
    )


def _heads(options: Options) -> tuple[int, ...]:
    return options.head_sizes or ((64,) if options.smoke else tuple(HEAD_SIZES))


def _names(variant: Variant) -> tuple[str, str]:
    return variant.id.name, str(variant.id)


def _wanted(options: Options, variants: Sequence[Variant]) -> list[Variant]:
    return [each for each in variants if not options.only or {*options.only} & {*_names(each)}]


def _grid(options: Options, variants: Sequence[Variant]) -> tuple[Cell, ...]:
    profile = PROFILES["smoke" if options.smoke else "device"]
    return tuple(work_list(_wanted(options, variants), _heads(options), profile))


class Rig:
    """One machine with what is to be tried on it; `run` goes by the cells that a stage gives it."""

    def __init__(self, session: Session, machine: Machine, journal: Journal) -> None:
        options = session.options
        self.session, self.options, self.machine, self.journal = session, options, machine, journal
        self.heads = _heads(options)
        self.variants = machine.variants()
        self.grid = _grid(options, self.variants)
        self.deadline = None if options.limit_s is None else session.began + options.limit_s - RESERVE_S
        self.run = Run(
            machine,
            self.variants,
            self.grid,
            journal,
            options.command,
            view=session,
            jobs=os.cpu_count() or 1,
            deadline=self.deadline,
            smoke=options.smoke,
        )

    def left_s(self) -> float:
        """Return the seconds until stages must end."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Give what runs inside so many seconds at most; it is cut off as at the end of the call."""
        whole = self.run.deadline
        self.run.deadline = min(time.monotonic() + seconds, float("inf") if whole is None else whole)
        try:
            yield
        finally:
            self.run.deadline = whole

    def many(self) -> list[Cell]:
        """Return the cells of 200 seeds."""
        heads = [size for size in SEED_HEADS if size in self.heads]
        if self.options.smoke:
            return []
        return many_seeds_only(work_list(_wanted(self.options, self.variants), heads, PROFILES["device-long"]))

    def tasks(
        self,
        name: str,
        function: str,
        arguments: Sequence[dict[str, Any]],
        of: Variant,
        timeout_s: float = STAGE_TASK_TIMEOUT_S,
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Run tasks one by one, each in the journal; returns results and what has none.

        A known result counts while the kernel of the task's `variant`, else of `of`, the device and the versions are
        the same.
        """
        keys = [
            key_of(
                {
                    "stage": name,
                    **each,
                    "peer": bool(each.get("peer")),
                    **self.run.identity(each.get("variant", str(of.id))),
                }
            )
            for each in arguments
        ]
        open_ones = [i for i, key in enumerate(keys) if (self.journal.get(key) or {}).get("status") != "ok"]
        self.session.stage(name, len(arguments), len(arguments) - len(open_ones))
        missing = []
        tasks = [Task(function, arguments[i], timeout_s, bundle=name) for i in open_ones]
        for place, outcome in self.run.outcomes(tasks, 1):
            i = open_ones[place]
            line = {"status": outcome.status, "error": outcome.error, "value": outcome.value, "stage": name}
            self.journal.append(keys[i], line)
            self.session.advance(str(arguments[i]), line)
            if outcome.status != "ok":
                missing.append(f"{outcome.status}: {outcome.error}")
                self.session.note(outcome.traceback or outcome.output)
                self.run.require_device(outcome)
        known = [self.journal.get(key) for key in keys]
        found = [line["value"] for line in known if line is not None and line["status"] == "ok"]
        self.session.results[name] = found
        return found, missing

    def peer(self) -> str | None:
        """Return the folder of vLLM's kernels, where one was given."""
        return str(self.options.peer.absolute()) if self.options.peer else None

    def where(self) -> dict[str, str]:
        """Return the arguments that say which device a task is for."""
        return {"device": self.machine.device.key, "place": self.machine.place}

    def write_variants(self) -> list[Variant]:
        """Return the variants that write int4, the portable one first."""
        return [v for v in self.variants if v.op is Op.WRITE and v.mode is Mode.INT4_PER_TOKEN_HEAD]
