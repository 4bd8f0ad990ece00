"""The standard streams as commands write to them.

What standard output does not take is told apart from a file that takes no more; what standard error does not take is
lost, and changes neither the answer nor the exit code.
"""

from __future__ import annotations

import errno
import os
from typing import Any, TextIO

from kvreg.core.errors import UsageError, wrong


class OutputLost(UsageError):
    """Standard output lies on a disk that is full, or takes nothing for another reason than a reader that left."""

    code = "output_lost"


class Output:
    """A text stream that raises OutputLost where the one below raises OSError; a broken pipe passes through.

    `closed`: the process was started without a standard output (`>&-`), and `below` only stands in for it.
    """

    def __init__(self, below: TextIO, *, closed: bool = False) -> None:
        self._below = below
        self._closed = closed

    def write(self, text: str) -> int:
        """Write `text`; returns its length."""
        if self._closed:
            raise _lost(OSError(errno.EBADF, "it is closed"))
        try:
            return self._below.write(text)
        except OSError as error:
            raise _lost(error) from error

    def flush(self) -> None:
        """Hand over what is held back."""
        try:
            self._below.flush()
        except OSError as error:
            raise _lost(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class Asides:
    """A text stream for what stands beside the answer: it raises nothing where the one below raises OSError."""

    def __init__(self, below: TextIO) -> None:
        self._below = below

    def write(self, text: str) -> int:
        """Write `text`; returns its length."""
        try:
            return self._below.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Hand over what is held back."""
        try:
            self._below.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Let the end of the process, which flushes what is held back, not fail either."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._below.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def _lost(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    remedy = "free some space, or send the answer elsewhere"
    return OutputLost(wrong("standard output", required="to take the answer", found=error.strerror, remedy=remedy))
