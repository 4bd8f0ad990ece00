"""How a bench is shown: one table a shape, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvreg.cli import render

if TYPE_CHECKING:
    from kvreg.bench.host import HostRow
    from kvreg.bench.pays import Answer
    from kvreg.bench.results import Compared, Results, Row
    from kvreg.bench.step.results import StepRow
    from kvreg.validation.machine import Machine

COLUMNS = ("kernel", "us", "spread", "TB/s", "of bf16", "host us", "e")
METHODS = {
    "graph": "graph replay, buffers rotated over more than three times the L2",
    "delay": "eager calls queued behind a busy card, buffers rotated",
    "host": "the host's clock; the cpu device's times depend on what else it does",
}
MARK = "*"
MARKED = (
    f"{MARK} no FlashInfer in this run, and kvreg's own bf16 reaches less than 85 % of the card: the best bf16 there"
    " is may be faster"
)


PAYS_COLUMNS = ("mode", "heads", "batch", "pays from context", "of bf16 there", "at the longest", "fastest bf16 there")


def show(found: Results, machine: Machine, versions: Mapping[str, str | None], as_json: bool) -> None:
    """Print the answer."""
    if as_json:
        render.document({**document_head(machine, versions), **found.to_json()})
        return
    render.line(head(found, machine.device.key, versions))
    for each in found.shapes:
        render.line()
        render.table(COLUMNS, [_cells(each, row) for row in each.rows if row.is_timed], title=title(each))
        for row in each.rows:
            if not row.is_timed and row.status != "refused":
                render.line(f"{row.kernel}: {row.status}: {row.detail}")
    render.line()
    for text in (*refusals(found), *footnotes(found)):
        render.line(text)


def show_pays(
    found: Results, answers: Sequence[Answer], machine: Machine, versions: Mapping[str, str | None], as_json: bool
) -> None:
    """Print from where on a mode pays; the rows behind it are in the document alone."""
    if as_json:
        pays = [each.to_json() for each in answers]
        render.document({**document_head(machine, versions), "pays": pays, **found.to_json()})
        return
    render.line(head(found, machine.device.key, versions))
    render.line()
    render.table(PAYS_COLUMNS, [_pays(each) for each in answers])
    failed = [(each, row) for each in found.shapes for row in each.rows if row.status not in ("ok", "refused")]
    for each, row in failed:
        render.line(f"{each.shape.name}: {row.kernel}: {row.status}: {row.detail}")
    render.line()
    render.line("pays from: faster than the fastest bf16 of this run there and at every longer context of the sweep")
    for text in refusals(found):
        render.line(text)
    if any(each.is_marked for each in found.shapes):
        render.line(MARKED.removeprefix(MARK).strip())


def _pays(answer: Answer) -> tuple[object, ...]:
    return (
        answer.mode,
        f"{answer.q_heads}/{answer.kv_heads} of {answer.head_size}, group {answer.group}",
        answer.batch,
        "never here" if answer.least_context is None else answer.least_context,
        "-" if answer.ratio_there is None else f"{answer.ratio_there:.2f}x",
        f"{answer.ratio_at_longest:.2f}x at {answer.longest}",
        answer.best_bf16,
    )


def document_head(machine: Machine, versions: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what every document of a bench begins with."""
    device = {"key": machine.device.key, "platform": machine.device.platform, "arch": machine.device.arch}
    return {"schema": 1, "device": device, "versions": dict(versions)}


def head(found: Results, device: str, versions: Mapping[str, str | None]) -> str:
    """Return the line above all tables."""
    rate = "not measured" if found.bandwidth is None else f"{found.bandwidth / 1e12:.3f} TB/s"
    return f"{device}: {named(versions)}; read bandwidth in this run {rate}"


def named(versions: Mapping[str, str | None]) -> str:
    """Return the versions that a time depends on."""
    return ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "driver") if versions.get(name))


def untimed(row: HostRow | StepRow) -> str:
    """Return what is said of a call or a step that has no time."""
    return f"not measured: {row.detail}" if row.status == "refused" else f"{row.kernel}: {row.status}: {row.detail}"


def title(of: Compared) -> str:
    """Return what stands above a shape's table."""
    best = of.best
    beside = f"; fastest bf16 {best.us:.1f} us" if best is not None and best.us else ""
    mark = MARK if of.is_marked else ""
    name = of.shape.name
    if of.shape.size not in name:  # that of flags says it itself
        name += f": {of.shape.work} {of.shape.size}"
    return f"{name}, {of.shape.heads}{beside}{mark}"


def refusals(found: Results) -> Iterable[str]:
    """Yield each reason for which a mode was not measured, once, with its shapes."""
    shapes: dict[str, list[str]] = {}
    for row in found.rows():
        if row.status == "refused":
            shapes.setdefault(row.detail, []).append(row.shape)
    for reason, names in shapes.items():
        yield f"not measured at {', '.join(names)}: {reason}"
    if shapes:
        yield "--all-variants measures what select refuses for want of evidence"


def footnotes(found: Results) -> Iterable[str]:
    """Yield what the figures mean."""
    methods = dict.fromkeys(row.method for row in found.rows() if row.is_timed)
    for method in methods:
        yield f"us: median of one call by {METHODS[method]}; spread: of the middle half of the samples"
    yield "TB/s: bytes that the call must move; in brackets the share of the read bandwidth"
    yield "of bf16: how many times faster than the fastest bf16 of this run; host us: the eager Python call alone"
    yield "e: worst judged row against fp64 attention over the cache that the kernel read"
    if any(each.is_marked for each in found.shapes):
        yield MARKED


def _cells(of: Compared, row: Row) -> tuple[object, ...]:
    rate, share, ratio = row.bytes_per_second, of.share(row), of.ratio(row)
    return (
        row.kernel,
        f"{row.us:.1f}",
        "-" if row.spread is None else f"{100 * row.spread:.1f} %",
        "-" if rate is None else f"{rate / 1e12:.3g}" + ("" if share is None else f" ({100 * share:.0f} %)"),
        "-" if ratio is None else f"{ratio:.2f}x" + (MARK if of.is_marked else ""),
        "-" if row.host_us is None else f"{row.host_us:.0f}",
        "-" if row.e is None else f"{row.e:.1e}",
    )
