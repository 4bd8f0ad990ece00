"""What lies below a root of evidence: a folder a device, in it one a mode, in that traces and their logs.

A folder that cannot be listed is a warning, and never taken for an empty one without a word.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvreg.core import notices
from kvreg.core.overlay import unreadable


def names_in(folder: Path | None) -> list[str]:
    """Return the names of the folders in a folder, sorted; none where there is no such folder."""
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        _warn(folder)
        return []


def evidence_files(folder: Path) -> list[str]:
    """Return the paths of the traces and logs of one device's and mode's folder, sorted; empty when there is none."""
    try:
        names = os.listdir(folder)
    except OSError:
        _warn(folder)
        return []
    return [
        os.path.join(folder, name)
        for name in sorted(names)
        if not name.startswith(".") and name.endswith((".yaml", ".jsonl.gz"))
    ]


def traces_among(paths: Sequence[str]) -> list[Path]:
    """Return the traces among `evidence_files`, without their logs."""
    return [Path(path) for path in paths if path.endswith(".yaml")]


def _warn(folder: Path) -> None:
    if (problem := unreadable(folder)) is not None:
        notices.warn(problem)
