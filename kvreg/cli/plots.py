"""Files that figures are drawn into, with matplotlib, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvreg.core.errors import UsageError, wrong


def require(path: Path) -> Any:
    """Return matplotlib's Figure; raises UsageError where it is not installed, or draws no file of that suffix."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError(
            wrong("--plot", required="matplotlib", found="none", remedy="pip install 'kvreg[bench]'")
        ) from None
    kinds = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix and path.suffix.lower().removeprefix(".") not in kinds:
        required = f"one of .{', .'.join(kinds)}"
        raise UsageError(wrong(f"--plot {path}", required=required, found=path.suffix, remedy="name a .png or .svg"))
    return Figure


def save(figure: Any, path: Path) -> None:
    """Write a figure; raises UsageError for a file that cannot be written."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            wrong(f"--plot {path}", required="a file to write to", found=str(error), remedy="name a .png or .svg")
        ) from None
