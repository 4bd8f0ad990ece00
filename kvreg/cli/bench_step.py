"""`kvreg bench --step`: what its flags come to, and how the answer is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvreg.cli import bench_view, render
from kvreg.cli.bench_asked import Asked, refuse_beside
from kvreg.core.errors import Refused, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.bench.step.results import StepResults, StepRow
    from kvreg.bench.step.shapes import StepShape
    from kvreg.bench.subjects import Planned
    from kvreg.core.modes import Mode
    from kvreg.validation.machine import Machine

COLUMNS = ("attention of", "us", "tokens/s", "of bf16", "attention", "cache", "e, hidden")
GIB = 1 << 30


def plan(asked: Asked, machine: Machine, modes: Sequence[Mode]) -> tuple[StepShape, Planned]:
    """Return the step that flags name and whose attention is timed in it.

    Raises UsageError for flags that do not go together or name no model, BadFile for a config.json that lacks a size,
    Refused for a model that is no such step, or where no mode that was asked for can be measured.
    """
    from kvreg.bench.step import models, shapes

    refuse_beside(
        "--step",
        "one whole step",
        op=asked.works,
        q_heads=asked.q_heads,
        kv_heads=asked.kv_heads,
        head_size=asked.head_sizes,
        ragged=asked.ragged,
        chunk=asked.chunk,
        shape=asked.only,
        peer=asked.peer,
        pays=asked.pays,
        host=asked.host,
        plot=asked.plot,
    )
    context = asked.context or shapes.CONTEXT
    model = models.model_of(asked.step or "", context)
    if asked.layers is not None:
        if asked.layers > model.layers:
            raise UsageError(
                wrong(
                    "--layers",
                    required=f"at most the {model.layers} of {model.name}",
                    found=str(asked.layers),
                    remedy="name fewer, or leave it out for all",
                )
            )
        model = replace(model, name=f"{asked.layers} of {model.layers} layers of {model.name}", layers=asked.layers)
    shape = shapes.StepShape(model, asked.batch or shapes.BATCH, context, asked.page or shapes.PAGE)
    planned = shapes.plan(shape, machine.device, modes, every=asked.every)
    if not any(each.maker == "kvreg" and each.mode in modes for each in planned.subjects):
        reason = next(each.reason for each in planned.refusals if each.mode in modes)
        raise Refused(f"bench: {reason}; or take --all-variants, which asks for no evidence")
    return shape, planned


def show(found: StepResults, machine: Machine, versions: Mapping[str, str | None], as_json: bool) -> None:
    """Print the answer."""
    if as_json:
        render.document({**bench_view.document_head(machine, versions), **found.to_json()})
        return
    render.line(f"{machine.device.key}: {bench_view.named(versions)}")
    render.line()
    timed = [row for row in found.rows if row.is_timed]
    render.table(COLUMNS, [_cells(found, row) for row in timed], title=_title(found.shape))
    for row in found.rows:
        if not row.is_timed:
            render.line(bench_view.untimed(row))
    render.line()
    for text in _footnotes(found):
        render.line(text)


def _title(shape: StepShape) -> str:
    model = shape.model
    heads = f"{model.q_heads}/{model.kv_heads} heads of {model.head_size}"
    sizes = (
        f"{model.layers} layers, hidden {model.hidden}, {heads}, MLP {model.intermediate}, vocabulary {model.vocab}"
    )
    return f"{shape}: {sizes}; bf16 weights of {shape.weight_bytes / GIB:.3g} GiB"


def _cells(found: StepResults, row: StepRow) -> tuple[object, ...]:
    rate, ratio, share = found.tokens_per_second(row), found.ratio(row), row.attention_share
    return (
        row.kernel + (" (alone)" if row.alone else ""),
        f"{row.us:.1f}" + ("" if row.spread is None else f" ({100 * row.spread:.1f} %)"),
        "-" if rate is None else f"{rate:.0f}",
        "-" if ratio is None else f"{ratio:.2f}x",
        "-" if share is None else f"{row.attention_us:.1f} us, {100 * share:.0f} %",
        "-" if row.cache_bytes is None else f"{row.cache_bytes / GIB:.3g} GiB",
        f"{row.e or 0:.1e}, " + ("-" if row.hidden is None else f"{row.hidden:.1e}"),
    )


def _footnotes(found: StepResults) -> Iterator[str]:
    """Yield what the figures mean."""
    for method in dict.fromkeys(row.method for row in found.rows if row.is_timed):
        yield f"us: median of a whole step by {METHODS[method]}; in brackets the middle half of the samples"
    yield "a step: norms, projections, rotary positions, write, attention, MLP, last norm and LM head; no embedding"
    yield "of bf16: how many times faster than the fastest bf16 step of this run"
    yield "attention: what the step takes longer than the same step without it; the cache's write is in both"
    yield "e: worst judged row of the last layer against fp64 attention over the cache that it read"
    yield "hidden: distance of the last hidden state from bf16's; weights and rows are random, so it rates no model"


METHODS = {
    "graph": "replay of a CUDA graph that holds a few of them",
    "host": "the host's clock; the cpu device's times depend on what else it does",
}
