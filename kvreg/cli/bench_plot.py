"""`kvreg bench --plot`: how many times faster than the fastest bf16 each kernel is, shape by shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.core.errors import UsageError, wrong

if TYPE_CHECKING:
    from kvreg.bench.results import Compared, Results

BAR = 0.22
"""Inches of a bar."""


def require() -> Any:
    """Return matplotlib's Figure; raises UsageError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError(
            wrong("--plot", required="matplotlib", found="none", remedy="pip install 'kvreg[bench]'")
        ) from None
    return Figure


def draw(found: Results, path: Path) -> None:
    """Draw the ratios into a file; raises UsageError without a time, or for a file that cannot be written."""
    drawn = [each for each in found.shapes if any(row.is_timed for row in each.rows)]
    if not drawn:
        raise UsageError(wrong("--plot", required="a row with a time", found="none", remedy="measure another shape"))
    heights = [sum(row.is_timed for row in each.rows) + 2 for each in drawn]
    figure = require()(figsize=(9, BAR * sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, each in zip(panels, drawn, strict=True):
        _panel(axes, each)
    panels[-1].set_xlabel("times as fast as the fastest bf16 of the run")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            wrong(f"--plot {path}", required="a file to write to", found=str(error), remedy="name a .png or .svg")
        ) from None


def _panel(axes: Any, of: Compared) -> None:
    rows = [row for row in reversed(of.rows) if row.is_timed]
    names = [f"{row.kernel} ({row.mode})" if row.maker == "sdpa" else row.kernel for row in rows]
    bars = axes.barh(names, [of.ratio(row) or 0.0 for row in rows])
    axes.bar_label(bars, [f"{row.us:.1f} us" for row in rows], padding=3, fontsize="x-small")
    axes.axvline(1.0, linestyle=":", color="gray")
    axes.tick_params(labelsize="x-small")
    axes.set_title(f"{of.shape.name}: {of.shape.size}", fontsize="small", loc="left")
