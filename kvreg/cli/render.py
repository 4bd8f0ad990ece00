"""How answers look: tables for a terminal, aligned text for a pipe, one JSON document for programs.

Whatever is printed passes through here, and what a file, a device or an argument holds reaches a terminal escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kvreg.core import notices

MOST_COLUMNS = 7
"""More do not fit a terminal of 100 characters; what does not fit belongs to --json or a page of its own."""

UNKNOWN = "unknown"
"""What a null fact reads as."""


def is_terminal() -> bool:
    """Return whether standard output is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def text(value: object) -> str:
    """Return a value as a table shows it: null as `unknown`, lists with commas, numbers without needless zeros."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text(one)}" for name, one in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(text(one) for one in value) or "-"
    return str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print rows under their column names; `title` stands above. At most seven columns."""
    if len(columns) > MOST_COLUMNS:
        raise ValueError(f"a table has at most {MOST_COLUMNS} columns, found {len(columns)}")
    columns = [notices.one_line(name) for name in columns]
    cells = [[notices.one_line(text(value)) for value in row] for row in rows]
    title = None if title is None else notices.one_line(title)
    if is_terminal():
        _drawn(columns, cells, title)
        return
    if title:
        print(title)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        # The last column is not padded, so that no line ends in blanks.
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]))


def _drawn(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    # rich costs 50 ms, which a pipe need not pay.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))  # Text: a name such as `[0x56a0]` is no markup
    Console(highlight=False).print(drawn)


def document(content: Mapping[str, Any]) -> None:
    """Print the one JSON document of a command; NaN and infinity are not JSON and raise ValueError."""
    print(json.dumps(content, indent=2, allow_nan=False))


def counted(count: int, word: str, words: str | None = None) -> str:
    """Return a number with its word: `1 file`, `2 files`; `words` for what takes more than an s."""
    return f"{count} {word if count == 1 else words or f'{word}s'}"


def line(content: str = "") -> None:
    """Print one line; what it quotes from files cannot steer the terminal."""
    print(notices.printable(content))
