"""Every error that kvreg raises on purpose, each with the exit code the CLI ends with.

    KvregError                    1   (never raised itself)
    ├── UsageError                2   what was asked cannot be understood
    │   ├── UnknownDevice         2   no card of that name; carries near misses
    │   ├── BadEnvironment        2   a KVREG_* variable has a wrong value
    │   └── BadFile               2   an input file cannot be read as what it should be
    │       └── NewerFile         2   it is of a schema that only a newer kvreg knows
    ├── CallError                 2   a Python call with wrong arguments, found before any launch
    │   ├── WrongShape            2
    │   ├── WrongDtype            2
    │   ├── WrongDevice           2
    │   ├── WrongCache            2   a cache of another mode, layout or format
    │   ├── OutOfMemory           2   the device has no room for the cache that is asked for
    │   └── FeatureNotSelected    2   a feature outside the selection's request
    ├── Refused                   3   no validated variant serves the request
    ├── Finding                   4   lint, drift or stale evidence
    ├── GateFailed                5   a kernel gave a wrong result
    ├── DeviceUnavailable         6   no card, or the card was lost
    │   └── ToolchainUnavailable  6   a compiler for a card is not installed, or cannot be
    └── NoImprovement             7   only with --require-improvement

A message names the subject, what is required, what was found and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_SHOWN = 80
"""Characters of a value of another type than was asked for."""
_SHOWN_DIGITS = 10**_LONGEST_SHOWN


class KvregError(Exception):
    """Base of all deliberate errors; `exit_code` is what the CLI returns for it."""

    exit_code = 1
    code = "error"
    candidates: tuple[str, ...] = ()
    """What may have been meant, the nearest first."""

    # No constructor here: torch.compile quotes an error of a compiled call only where it can follow how it is made.

    @property
    def message(self) -> str:
        """The line that it was raised with."""
        return str(self)


class UsageError(KvregError):
    """What was asked cannot be understood."""

    exit_code = 2
    code = "usage"

    def __init__(self, message: str, *, candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class UnknownDevice(UsageError):
    """No card of that name, alias, PCI id or arch is known."""

    code = "unknown_device"


class BadEnvironment(UsageError):
    """A KVREG_* variable holds a value that is not in the valid list."""

    code = "bad_environment"


class BadFile(UsageError):
    """An input file cannot be read as what it should be."""

    code = "bad_file"


class NewerFile(BadFile):
    """An input file is of a schema that only a newer kvreg knows; nothing in it is damaged."""

    code = "newer_file"


class CallError(KvregError, ValueError):
    """A Python call with wrong arguments; raised before any launch."""

    exit_code = 2
    code = "call"


class WrongShape(CallError):
    """A tensor's shape does not fit the cache or the other tensors."""

    code = "wrong_shape"


class WrongDtype(CallError):
    """A tensor's dtype is not the one that the selection was made for."""

    code = "wrong_dtype"


class WrongDevice(CallError):
    """Tensors of one call lie on different devices, or not on the cache's."""

    code = "wrong_device"


class WrongCache(CallError):
    """The cache's mode, layout id, fp8 format or buffer is not what the call needs."""

    code = "wrong_cache"


class OutOfMemory(CallError):
    """The device has no room for the cache that is asked for."""

    code = "out_of_memory"


class FeatureNotSelected(CallError):
    """The call uses a feature that the selection's request did not name."""

    code = "feature_not_selected"


class Refused(KvregError):
    """No validated variant serves the request."""

    exit_code = 3
    code = "refused"


class Finding(KvregError):
    """A check found something: lint, drift or stale evidence."""

    exit_code = 4
    code = "finding"


class GateFailed(KvregError):
    """A kernel's result lies outside its accuracy class."""

    exit_code = 5
    code = "gate_failed"


class DeviceUnavailable(KvregError):
    """No card is present, or it was lost during the work."""

    exit_code = 6
    code = "device_unavailable"


class ToolchainUnavailable(DeviceUnavailable):
    """A compiler that stands in for a card is not installed, or cannot be."""

    code = "toolchain_unavailable"


class NoImprovement(KvregError):
    """A tuning run ended without a configuration better than the default."""

    exit_code = 7
    code = "no_improvement"


def wrong(subject: str, *, required: object, found: object, remedy: str) -> str:
    """Return the one line that an error about `subject` consists of."""
    return f"{subject}: required {required}, found {found}; {remedy}"


def shown(value: object) -> str:
    """Return a caller's value as `found` names it: its repr, on one line and cut where it is long.

    A tensor or a table given in place of a word prints over many lines.
    """
    if isinstance(value, int) and not -_SHOWN_DIGITS < value < _SHOWN_DIGITS:  # Python prints no int of 4301 digits
        return f"an int of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str) else " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
