"""Lines on stderr that are no errors: a warning once, debug lines when KVREG_LOG asks for them."""

from __future__ import annotations

import os
import sys

LEVELS = ("debug", "info", "warning", "error")
"""Values of KVREG_LOG, the most talkative first."""
DEFAULT_LEVEL = "warning"

_said: set[str] = set()


def wanted(level: str) -> bool:
    """Return whether lines of `level` are shown; a wrong KVREG_LOG counts as the default here."""
    asked = os.environ.get("KVREG_LOG", "").strip().lower()
    return LEVELS.index(level) >= LEVELS.index(asked if asked in LEVELS else DEFAULT_LEVEL)


def warn(text: str) -> None:
    """Write one warning line; the same text only once in a process."""
    if text not in _said and wanted("warning"):
        _said.add(text)
        print(f"kvreg: warning: {one_line(text)}", file=sys.stderr)


def said(text: str) -> bool:
    """Return whether `text` was shown as a warning, and need not be said again."""
    return text in _said


def debug(text: str) -> None:
    """Write one line when KVREG_LOG=debug."""
    if wanted("debug"):
        print(f"kvreg: debug: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """Return `text` with its line breaks as spaces and other control characters as escapes."""
    return printable(" ".join(text.split("\n"))).strip()


def printable(text: str) -> str:
    """Return `text` with escapes in place of what would steer a terminal: controls and changes of direction."""
    return text.translate(_STEERING)


_MARKS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = (*range(32), *range(127, 160), *_MARKS)
_STEERING = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}
