"""The variables that kvreg reads. A wrong value is an error, an unknown name a warning: neither passes in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    device is for `resolve` to say.
    """
    found = os.environ if variables is None else variables
    for name in sorted(found):
        if name.startswith(PREFIX) and name not in VARIABLES:
            notices.warn(_unknown(name))
    home_folder = home(found)
    if home_folder.exists() and not home_folder.is_dir():
        raise BadEnvironment(
            wrong("KVREG_HOME", required="a folder", found=f"the file {home_folder}", remedy="name another path")
        )
    return Environment(
        home=home_folder,
        device=_value(found, "KVREG_DEVICE"),
        backend=_backend(_value(found, "KVREG_BACKEND")),
        log=_log(_value(found, "KVREG_LOG")),
    )


def home(variables: Mapping[str, str] | None = None) -> Path:
    """Return KVREG_HOME, else `kvreg` in the user's data folder (XDG_DATA_HOME, else ~/.local/share)."""
    found = os.environ if variables is None else variables
    given = _value(found, "KVREG_HOME")
    if given is not None:
        return Path(given).expanduser().absolute()
    data = _value(found, "XDG_DATA_HOME")
    return (Path(data) if data else Path("~/.local/share").expanduser()).absolute() / "kvreg"


def _value(found: Mapping[str, str], name: str) -> str | None:
    return found.get(name, "").strip() or None


def _unknown(name: str) -> str:
    if name in REPLACED:
        return f"{name} is not read; use {REPLACED[name]} ({VARIABLES[REPLACED[name]]})"
    return f"{name} is no variable of kvreg and is not read; {suggestion(name, VARIABLES)}"


def _backend(value: str | None) -> str | None:
    if value is None:
        return None
    # The registry reads KVREG_HOME through this module, so it can be imported only on use.
    from kvreg.core import registry

    return _one_of("KVREG_BACKEND", value, registry.families())


def _log(value: str | None) -> str:
    if value is None:
        return notices.DEFAULT_LEVEL
    return _one_of("KVREG_LOG", value.lower(), notices.LEVELS)


def _one_of(name: str, value: str, valid: tuple[str, ...]) -> str:
    if value in valid:
        return value
    near = nearest(value, valid)
    remedy = f"did you mean {near[0]}?" if near else "unset it or take one of these"
    raise BadEnvironment(
        wrong(name, required=f"one of {', '.join(valid)}", found=value, remedy=remedy), candidates=near or valid
    )
