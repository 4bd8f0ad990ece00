"""Looking at a machine without ever failing: files under /sys, tools with a time limit, visible-device variables."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvreg.core import notices
from kvreg.core.backends import Detected

TOOL_LIMIT_S = 10.0
"""A healthy nvidia-smi answers in under 2 s even when it must first wake the driver; a hung one never does."""


def output_of(command: Sequence[str], *, limit_s: float = TOOL_LIMIT_S) -> str | None:
    """Return what a tool prints; None when it is missing, fails or runs past `limit_s` seconds and is killed."""
    import subprocess  # 10 ms, spared on machines where only files are read

    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        notices.warn(f"{command[0]} gave no answer in {limit_s:g} s; its cards are taken as absent")
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process stuck in the driver outlives SIGKILL, so waiting for it must have an end too.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return None
    return output if process.returncode == 0 else None


def unwritable(folder: Path) -> str | None:
    """Return why no file can be put into `folder`, None where one can; a folder that is not there is not made."""
    import tempfile  # 5 ms, for those who are about to write

    try:
        nearest = next(each for each in (folder, *folder.parents) if each.exists())
        # Permission bits say yes to root on file systems that take nothing.
        with tempfile.TemporaryFile(dir=nearest):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


def text_of(path: Path) -> str | None:
    """Return a file's text without surrounding blanks; None when it is missing, empty or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of `folder` in the order of the numbers in their names; none when it is missing."""
    try:
        found = list(folder.glob(pattern))
    except OSError:
        return []
    return sorted(found, key=lambda path: (int("".join(filter(str.isdigit, path.name)) or 0), path.name))


def properties(path: Path) -> dict[str, int]:
    """Return the `name value` lines of a file with integer values."""
    pairs = (line.split() for line in (text_of(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def visible(cards: Sequence[Detected], variables: Sequence[str], environment: Mapping[str, str]) -> list[Detected]:
    """Return the cards that the first set variable of `variables` leaves, in its order and numbered anew.

    As in the CUDA and HIP run times, the list ends at the first entry that names no card. Entries that are no plain
    numbers (UUIDs) leave all cards: the text that a driver prints for them is not compared here.
    """
    for variable in variables:
        value = environment.get(variable)
        if value is None:
            continue
        kept: list[Detected] = []
        for part in value.split(","):
            entry = part.strip()
            if entry and not entry.lstrip("-").isdigit():
                return list(cards)
            if not entry or not 0 <= int(entry) < len(cards):
                break
            kept.append(replace(cards[int(entry)], index=len(kept)))
        return kept
    return list(cards)
