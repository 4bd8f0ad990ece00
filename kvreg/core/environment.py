"""The variables that kvreg reads. A wrong value is an error, an unknown name a warning: neither passes in silence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvreg.core import notices
from kvreg.core.errors import BadEnvironment, wrong
from kvreg.core.near import nearest, suggestion

PREFIX = "KVREG_"

VARIABLES = {
    "KVREG_HOME": "folder of the overlay, the journal and the caches",
    "KVREG_DEVICE": "device that a command takes when it is given no --device",
    "KVREG_BACKEND": "variant family to insist on",
    "KVREG_LOG": f"how much goes to stderr: {', '.join(notices.LEVELS)}",
}

REPLACED = {
    "KVREG_CACHE": "KVREG_HOME",
    "KVREG_CACHE_DIR": "KVREG_HOME",
    "KVREG_DATA_DIR": "KVREG_HOME",
    "KVREG_ARCH": "KVREG_DEVICE",
    "KVREG_TARGET": "KVREG_DEVICE",
    "KVREG_FAMILY": "KVREG_BACKEND",
    "KVREG_KERNEL_BACKEND": "KVREG_BACKEND",
    "KVREG_DEBUG": "KVREG_LOG",
    "KVREG_LOG_LEVEL": "KVREG_LOG",
    "KVREG_VERBOSE": "KVREG_LOG",
}
"""Names that are not read, and the variable that does what they say."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables say, checked."""

    home: Path
    device: str | None = None
    backend: str | None = None
    """Variant family to insist on."""
    log: str = notices.DEFAULT_LEVEL


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """Return the checked variables of `variables` (the process's own by default).

    Raises BadEnvironment with the valid list for a wrong value of KVREG_BACKEND, KVREG_LOG or KVREG_HOME, and warns
    on stderr, once, about any other KVREG_* name. An empty value counts as not set. Whether KVREG_DEVICE names a
    device is for `resolve` to say, and whether KVREG_HOME can be written for those who write.
    """
    found = os.environ if variables is None else variables
    warn_of_unknown(found)
    for fault in faults(found):
        raise fault
    return Environment(
        home=home(found),
        device=device(found),
        backend=_value(found, "KVREG_BACKEND"),
        log=(_value(found, "KVREG_LOG") or notices.DEFAULT_LEVEL).lower(),
    )


def warn_of_unknown(found: Mapping[str, str]) -> None:
    """Warn of each KVREG_* name that nothing reads."""
    for name in sorted(found):
        if name.startswith(PREFIX) and name not in VARIABLES:
            notices.warn(_unknown(name))


def faults(variables: Mapping[str, str] | None = None) -> Iterator[BadEnvironment]:
    """Yield what is wrong with KVREG_HOME, KVREG_BACKEND and KVREG_LOG, for those who report instead of stopping."""
    found = os.environ if variables is None else variables
    if (fault := _home_fault(_home(found))) is not None:
        yield fault
    backend, log = _value(found, "KVREG_BACKEND"), _value(found, "KVREG_LOG")
    if backend is not None:
        # The registry reads KVREG_HOME through this module, so it can be imported only on use.
        from kvreg.core import registry

        yield from _one_of("KVREG_BACKEND", backend, registry.families())
    if log is not None:
        yield from _one_of("KVREG_LOG", log.lower(), notices.LEVELS)


def device(variables: Mapping[str, str] | None = None) -> str | None:
    """Return KVREG_DEVICE, unchecked."""
    return _value(os.environ if variables is None else variables, "KVREG_DEVICE")


def home(variables: Mapping[str, str] | None = None) -> Path:
    """Return KVREG_HOME, else `kvreg` in the user's data folder (XDG_DATA_HOME, else ~/.local/share).

    A relative one stays so where the current folder is gone, which `faults` names.
    """
    return _absolute(_home(os.environ if variables is None else variables))


def _home(found: Mapping[str, str]) -> str:
    given, data = _value(found, "KVREG_HOME"), _value(found, "XDG_DATA_HOME")
    # The `~` of a user whose home folder is unknown stays.
    return os.path.expanduser(given) if given else os.path.join(data or os.path.expanduser("~/.local/share"), "kvreg")


def _absolute(path: str) -> Path:
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        return Path(path)


def _home_fault(path: str) -> BadEnvironment | None:
    """Return why nothing could ever be kept below `path`; None for a folder that is merely not there yet."""
    folder, found = _absolute(path), None
    try:
        if not folder.is_absolute():
            found = f"{folder}, from a current folder that is gone"
        elif not stat.S_ISDIR(os.stat(folder).st_mode):
            found = f"the file {folder}"
        elif not os.access(folder, os.R_OK | os.X_OK):
            found = f"{folder}, which cannot be read"
    except FileNotFoundError:
        if path.startswith("~"):
            found = f"{path}, and no home folder of that user"
    except NotADirectoryError:
        found = f"{folder}, part of which is a file"
    except OSError as error:
        found = f"{folder} ({error.strerror})"
    if found is None:
        return None
    return BadEnvironment(wrong("KVREG_HOME", required="a folder", found=found, remedy="set it to a folder of yours"))


def _value(found: Mapping[str, str], name: str) -> str | None:
    return found.get(name, "").strip() or None


def _unknown(name: str) -> str:
    if name in REPLACED:
        return f"{name} is not read; use {REPLACED[name]} ({VARIABLES[REPLACED[name]]})"
    return f"{name} is no variable of kvreg and is not read; {suggestion(name, VARIABLES)}"


def _one_of(name: str, value: str, valid: tuple[str, ...]) -> Iterator[BadEnvironment]:
    if value in valid:
        return
    near = nearest(value, valid)
    remedy = f"did you mean {near[0]}?" if near else "unset it or take one of these"
    yield BadEnvironment(
        wrong(name, required=f"one of {', '.join(valid)}", found=value, remedy=remedy), candidates=near or valid
    )
