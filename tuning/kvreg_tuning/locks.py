"""One writer at a time: a lock file beside the file that is written, held for the length of one read-merge-replace.

The lock is the kernel's (flock), so a killed writer gives it up; the file itself stays and only says who held it last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from kvreg.core.errors import UsageError, wrong

PATIENCE_S = 30.0
"""A write of ten thousand entries takes some seconds; a writer that needs longer is stopped or stuck."""
_POLL_S = 0.02


@contextlib.contextmanager
def locked(path: Path, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock of `path`, `.<name>.lock` beside it; the folder must exist.

    Raises UsageError that names the holder when it is not free within `patience_s` seconds; OSError where the folder
    cannot be written.
    """
    # Never deleted: a writer that waits on a deleted lock file would hold a lock that nobody else sees.
    with open(path.with_name(f".{path.name}.lock"), "a+b") as lock:
        end = time.monotonic() + patience_s
        while not _taken(lock.fileno()):
            if time.monotonic() >= end:
                lock.seek(0)
                raise UsageError(_held(path, lock.read().decode(errors="replace").strip(), patience_s))
            time.sleep(_POLL_S)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
        yield  # closing the file gives the lock up


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(path: Path, holder: str, patience_s: float) -> str:
    return wrong(
        str(path),
        required=f"its lock within {patience_s:g} s",
        found=f"{holder or 'another process'} that holds it",
        remedy="wait until that one has written, or end it",
    )
