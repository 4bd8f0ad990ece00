"""Files that a user names, met at the door: a regular file, or one line of error; no wait for the writer of a pipe.

A pipe that nobody writes into would be read for ever, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvreg.core.errors import BadFile

_KINDS = {
    stat.S_IFIFO: "a pipe (write what it gives into a file first)",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def no_file(path: Path) -> str | None:
    """Return what a path is in place of a file; None for a regular file, a folder, and what is not there."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):  # ValueError: a path that holds a null byte
        return None


def read_text(path: Path, kind: str, *, encoding: str = "utf-8") -> str:
    """Return the text of a file that was named as a `kind` ("YAML file"); raises BadFile where there is none."""
    found, remedy = no_file(path), "check the path"
    if found is None:
        try:
            return path.read_text(encoding=encoding)
        except UnicodeDecodeError:
            found, remedy = "not UTF-8 text", "save it as UTF-8"
        except (OSError, ValueError) as error:  # ValueError: a path that holds a null byte
            found = getattr(error, "strerror", None) or str(error)
    raise BadFile(f"{path}: required a readable {kind}, found: {found}; {remedy}")
