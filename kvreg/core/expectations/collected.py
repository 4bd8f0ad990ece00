"""Collected node ids as a file: one a line, as `pytest --collect-only -q` prints them."""

from __future__ import annotations

from pathlib import Path

from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read_text
from kvreg.core.expectations.matching import IdIndex

_BESIDES = ("ERROR ", "#", " ", "\t")
"""How lines start that are no ids although they hold one."""


def read_ids(path: Path) -> IdIndex:
    """Return the ids of a file; raises BadFile where it holds none.

    Lines without `::` and indented ones are what pytest prints besides: its summary, warnings. Ids may hold spaces.
    """
    lines = [line.rstrip() for line in read_text(path).split("\n")]
    ids = [line for line in lines if "::" in line and not line.startswith(_BESIDES)]
    if not ids:
        raise BadFile(
            f"{path}: required collected ids, one a line, found none; "
            f"`pytest --collect-only -q > {path.name}` makes them"
        )
    return IdIndex(ids)
