"""Folders of one's own evidence and tuned entries, below KVREG_HOME: one that cannot be listed is not an empty one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kvreg.core.errors import wrong


def unreadable(folder: Path) -> str | None:
    """Return the line about a folder that is there and cannot be listed or entered; None for any other.

    What lies below such a folder is not there for whoever may not look: the folder alone is named.
    """
    try:
        with os.scandir(folder):
            if os.access(folder, os.X_OK):
                return None
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # its files have names and no more
    except FileNotFoundError:
        return None
    except OSError as error:
        if not os.path.lexists(folder):
            return None
        remedy = "mend its rights or move it away: what it holds is not used"
        return wrong(str(folder), required="a folder that can be listed", found=error.strerror, remedy=remedy)


def closed(home: Path) -> list[tuple[Path, str]]:
    """Return each folder of the overlay that cannot be listed, with its line: evidence has one a device and mode."""
    found = []
    for depth, kind in ((2, "evidence"), (0, "tuned")):
        level = [home / kind]
        for left in range(depth, -1, -1):
            found += [(each, why) for each in level if (why := unreadable(each)) is not None]
            level = [below for each in level for below in _below(each)] if left else []
    return found


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:
        return []
