"""A file that the user names for an answer: judged before any work, so that it costs no hours and no device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvreg.core.errors import UsageError, wrong

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def target(option: str, named: str) -> Path:
    """Return the file that `named` stands for: itself, or what a symbolic link leads to, so that the link stays.

    Files are written by rename, which would put a file in the place of a device, a pipe or a link. Raises UsageError
    for an empty name and for whatever is there and is no regular file; the file need not exist.
    """
    if not named:
        raise _unfit(option, "an empty name", "name a file")
    path = Path(named)
    # Below /dev and /proc lies what the system made, /dev/stdout among it, even where it leads to a regular file.
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        raise _unfit(f"{option} {named}", "a name of the system's", "name a file, or leave the option out")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None  # new, or a link to what is not there yet
    except OSError as error:
        raise _unfit(f"{option} {named}", error.strerror or "none", "name another") from None
    if mode is not None and not stat.S_ISREG(mode):
        kind = next((word for is_kind, word in _KINDS if is_kind(mode)), "something else")
        raise _unfit(f"{option} {named}", kind, "name a file, or leave the option out")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def require_folder(option: str, path: Path) -> None:
    """Raise UsageError where the folder of a file to write is not there."""
    if not path.parent.is_dir():
        problem = wrong(f"{option} {path}", required="a file in a folder that is there", found=f"no {path.parent}",
                        remedy="make it first, or name another")  # fmt: skip
        raise UsageError(problem)


def _unfit(subject: str, found: str, remedy: str) -> UsageError:
    return UsageError(wrong(subject, required="a regular file or a new name", found=found, remedy=remedy))
