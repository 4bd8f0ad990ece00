"""`kvreg bench --host`: how host times are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

from kvreg.cli import bench_view, render

if TYPE_CHECKING:
    from kvreg.bench.host import HostRow
    from kvreg.validation.machine import Machine

COLUMNS = ("call of", "host us", "spread", "least", "running", "load")
QUIET = 0.95
"""Least part of the time that the measuring thread has a core on a host that is called quiet."""


def show(rows: Sequence[HostRow], machine: Machine, versions: Mapping[str, str | None], as_json: bool) -> None:
    """Print the answer."""
    if as_json:
        render.document({**bench_view.document_head(machine, versions), "rows": [asdict(row) for row in rows]})
        return
    render.line(f"{machine.device.key}: {bench_view.named(versions)}")
    for shape, of_shape in groupby(rows, key=lambda row: row.shape):
        some = list(of_shape)
        render.line()
        render.table(COLUMNS, [_cells(row) for row in some if row.us is not None], title=shape)
        for row in some:
            if row.us is None:
                render.line(bench_view.untimed(row))
    render.line()
    for text in _footnotes(rows, machine):
        render.line(text)


def _cells(row: HostRow) -> tuple[object, ...]:
    waiting = "" if row.runnable is None else f", {row.runnable} threads"
    return (
        row.kernel,
        f"{row.us:.1f}",
        f"{100 * (row.spread or 0):.0f} %",
        f"{row.least:.1f}",
        f"{100 * (row.running or 0):.0f} %",
        f"{row.load:.1f} on {row.cores} cores{waiting}",
    )


def _footnotes(rows: Sequence[HostRow], machine: Machine) -> Iterator[str]:
    yield "host us: median of the eager public call with all its checks, `out` given, until it returns; spread: of the"
    yield "middle half of the calls. The device is waited for outside of what is timed, and no garbage is collected"
    if not machine.is_card:
        yield "on the cpu device a call does its work before it returns, so that this is in its time"
    yield "running: part of the time in which the measuring thread had a core; load: of the host, before measuring"
    busy = [row.shape for row in rows if row.running is not None and row.running < QUIET]
    if busy:
        names = ", ".join(dict.fromkeys(busy))
        yield f"not a quiet host at {names}: the thread had a core for less than {100 * QUIET:.0f} % of the time"
