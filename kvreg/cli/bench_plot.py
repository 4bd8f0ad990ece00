"""`kvreg bench --plot`: how many times faster than the fastest bf16 each kernel is, shape by shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.cli import plots
from kvreg.core.errors import UsageError, wrong

if TYPE_CHECKING:
    from kvreg.bench.results import Compared, Results

RATIO = "times as fast as the fastest bf16 of the run"
BAR = 0.22
"""Inches of a bar."""


def draw(found: Results, path: Path) -> None:
    """Draw the ratios into a file; raises UsageError without a time, or for a file that cannot be written."""
    drawn = _timed(found)
    heights = [sum(row.is_timed for row in each.rows) + 2 for each in drawn]
    figure = plots.require(path)(figsize=(9, BAR * sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, each in zip(panels, drawn, strict=True):
        _panel(axes, each)
    panels[-1].set_xlabel(RATIO)
    plots.save(figure, path)


def draw_pays(found: Results, path: Path) -> None:
    """Draw ratios against contexts, a panel for each model's heads, a line for each mode and batch."""
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for each in _timed(found):
        lines = series.setdefault(each.shape.heads, {})
        for row in each.rows:
            ratio = each.ratio(row)
            if row.maker == "kvreg" and row.mode != "none" and ratio is not None:
                name = f"{row.kernel}, batch {len(each.shape.contexts)}"
                lines.setdefault(name, []).append((each.shape.contexts[0], ratio))
    figure = plots.require(path)(figsize=(9, 4 * len(series)), layout="constrained")
    for axes, (heads, lines) in zip(figure.subplots(len(series), squeeze=False)[:, 0], series.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker=".", label=name)
        axes.axhline(1.0, linestyle=":", color="gray")
        axes.set_xscale("log", base=2)
        contexts = sorted({context for points in lines.values() for context, _ in points})
        axes.set_xticks(contexts, [str(context) for context in contexts])
        axes.set(title=heads, xlabel="context", ylabel=RATIO)
        axes.legend(fontsize="x-small")
    plots.save(figure, path)


def _timed(found: Results) -> list[Compared]:
    drawn = [each for each in found.shapes if any(row.is_timed for row in each.rows)]
    if not drawn:
        raise UsageError(wrong("--plot", required="a row with a time", found="none", remedy="measure another shape"))
    return drawn


def _panel(axes: Any, of: Compared) -> None:
    rows = [row for row in reversed(of.rows) if row.is_timed]
    bars = axes.barh([row.kernel for row in rows], [of.ratio(row) or 0.0 for row in rows])
    axes.bar_label(bars, [f"{row.us:.1f} us" for row in rows], padding=3, fontsize="x-small")
    axes.margins(x=0.15)  # room for the times behind the bars
    axes.axvline(1.0, linestyle=":", color="gray")
    axes.tick_params(labelsize="x-small")
    axes.set_title(f"{of.shape.name}: {of.shape.size}", fontsize="small", loc="left")
