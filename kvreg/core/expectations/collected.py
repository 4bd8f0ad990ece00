"""Collected node ids as a file: one a line, as `pytest --collect-only -q` prints them."""

from __future__ import annotations

from pathlib import Path

from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read_text
from kvreg.core.expectations.matching import IdIndex


def read_ids(path: Path) -> IdIndex:
    """Return the ids of a file; raises BadFile where it holds none.

    Lines without `::` are what pytest prints besides: its summary, warnings, an empty line. Ids may hold spaces.
    """
    ids = [
        line.rstrip() for line in read_text(path).split("\n") if "::" in line and not line.startswith(("ERROR ", "#"))
    ]
    if not ids:
        raise BadFile(
            f"{path}: required collected ids, one a line, found none; "
            f"`pytest --collect-only -q > {path.name}` makes them"
        )
    return IdIndex(ids)
