"""Writes tuned files, and alone does so: locked read-merge-replace, so that no writer loses what another one wrote.

    report = merge(home / "tuned" / "h200.yaml", "h200", {"triton": "3.6.0"}, entries)

A reader sees the old file or the new one, whole. Entries stand in one order whoever writes them, so that a diff shows
what changed. A file with anything in it that cannot be read is set aside as `<name>.broken-<UTC>`, and what is good in
it is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvreg.core import notices
from kvreg.core.buckets import Bucket
from kvreg.core.errors import BadFile, NewerFile, UnknownDevice, UsageError, wrong
from kvreg.core.input_files import no_file
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.resolve import resolve
from kvreg.core.shards import replace_file
from kvreg.core.tuned_files import SCHEMA, Contents, EntryRecord, read
from kvreg_tuning.judging import Change, Fate, Judge, by_the_rules
from kvreg_tuning.locks import PATIENCE_S, locked

_HEADER = """\
# Written by kvreg tune; `kvreg tuned list` shows it. Times are microseconds.
# Comments are not kept, and an entry that is changed by hand was measured by nobody.
"""

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # a PyYAML built without libyaml has only the slow one


@dataclass(frozen=True, slots=True)
class Merge:
    """What one write did."""

    path: Path
    changes: tuple[Change, ...]
    total: int
    """Entries in the file now."""
    set_aside: Path | None = None
    """Where the file that could not be read as a whole lies now."""
    faults: tuple[str, ...] = ()
    """What could not be read of it."""

    def of(self, fate: Fate) -> tuple[EntryRecord, ...]:
        """Return the entries of one fate, as they stand in the file."""
        return tuple(change.entry for change in self.changes if change.fate == fate)

    @property
    def added(self) -> tuple[EntryRecord, ...]:
        """Entries of a shape and bucket that the file did not have."""
        return self.of("added")

    @property
    def replaced(self) -> tuple[EntryRecord, ...]:
        """Entries that took the place of one made with the same kernel and versions."""
        return self.of("replaced")

    @property
    def healed(self) -> tuple[EntryRecord, ...]:
        """Entries that took the place of one of another kernel, or of other versions."""
        return self.of("healed")

    @property
    def kept(self) -> tuple[EntryRecord, ...]:
        """Entries of the file that were not given up for what was to be written."""
        return self.of("kept")


def merge(
    path: Path,
    device: str,
    environment: Mapping[str, str],
    entries: Sequence[EntryRecord],
    *,
    judge: Judge | None = None,
    simulated: bool = False,
    patience_s: float = PATIENCE_S,
    dry_run: bool = False,
) -> Merge:
    """Write `entries` of a device key into its tuned file, and say what became of each.

    `environment`: versions (triton, torch, driver, kvreg) that entries without their own were made with. `judge`
    decides between two entries of one key; None takes the rules of kvreg_tuning.judging. `simulated` takes entries of
    replayed spaces, which belong into a KVREG_HOME of their own. `dry_run` writes nothing.

    Raises UsageError for a simulated entry without `simulated`, for a lock that is not free in time and for a folder
    that cannot be written; BadFile for a file of a newer kvreg.
    """
    if not simulated and any(entry.source == "simulated" for entry in entries):
        remedy = "give --simulate, which has a KVREG_HOME of its own"
        raise UsageError(wrong(str(path), required="entries of this machine", found="simulated ones", remedy=remedy))
    place = Path(os.path.realpath(path))  # a link is written through, and has the lock of what it leads to
    decide = judge or by_the_rules
    incoming = [entry if entry.environment is not None else _with(entry, environment) for entry in entries]
    try:
        if dry_run:
            return _merged(place, device, incoming, decide, simulated)[0]
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place, patience_s=patience_s):
            return _write(place, device, environment, incoming, decide, simulated)
    except OSError as error:
        required, remedy = "a file that can be read and replaced", "give this user the right, or name another folder"
        found = f"{error.strerror or error} ({error.filename or place.parent})"
        raise UsageError(wrong(str(path), required=required, found=found, remedy=remedy)) from None


def require_mergeable(path: Path, device: str, *, simulated: bool = False) -> None:
    """Raise what a `merge` would raise of the file that is there, before any work for it: UsageError, BadFile."""
    merge(path, device, {}, (), simulated=simulated, dry_run=True)


def text_of(device: str, environment: Mapping[str, str], entries: Iterable[EntryRecord]) -> str:
    """Return a tuned file; equal entries give equal text."""
    head = {"schema": SCHEMA, "device": device, "environment": dict(sorted(environment.items()))}
    body = [_plain(entry, environment) for entry in sorted(entries, key=_order)]
    document = {**head, "entries": body}
    return _HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=1000)


def _write(
    path: Path,
    device: str,
    environment: Mapping[str, str],
    incoming: Sequence[EntryRecord],
    judge: Judge,
    simulated: bool,
) -> Merge:
    _sweep(path)
    report, entries = _merged(path, device, incoming, judge, simulated)
    content = text_of(device, environment, entries).encode()
    aside = _set_aside(path, report.faults) if report.faults else None
    if any(change.fate != "kept" for change in report.changes) or aside is not None:
        replace_file(path, content)
    return Merge(path, report.changes, report.total, aside, report.faults)


def _merged(
    path: Path, device: str, incoming: Sequence[EntryRecord], judge: Judge, simulated: bool
) -> tuple[Merge, list[EntryRecord]]:
    """Return the report and the entries that the file is to hold."""
    there = _there(path, device, simulated)
    entries = {entry.key: entry for entry in there.entries}
    changes = []
    for entry in incoming:
        old = entries.get(entry.key)
        change = judge(old, entry) if old is not None else Change("added", entry)
        entries[entry.key] = change.entry
        changes.append(change)
    return Merge(path, tuple(changes), len(entries), None, there.faults), list(entries.values())


def _there(path: Path, device: str, simulated: bool) -> Contents:
    """Return what the file holds of this device; what does not belong there is a fault of it."""
    if not path.exists():
        return Contents(device, {}, ())
    # A file that may not be read is not broken, and a pipe is none: OSError ends the write, without a wait.
    if (other := no_file(path)) is not None:
        raise OSError(errno.EINVAL, f"it is {other}", str(path))
    path.open("rb").close()
    try:
        found = read(path, simulated=simulated)
    except NewerFile:
        raise
    except BadFile as error:
        return Contents(device, {}, (), (error.message,))
    if not _is_named(device, found.device):
        fault = f"{path}: belongs to {found.device}, not to {device}; none of its entries is used"
        return Contents(device, {}, (), (*found.faults, fault))
    return found


def _is_named(device: str, name: str) -> bool:
    """Whether a tuned file's name of its device is the key, or another name of it."""
    if name == device:
        return True
    try:
        return resolve(name).device.key == device
    except UnknownDevice:
        return False


def _with(entry: EntryRecord, environment: Mapping[str, str]) -> EntryRecord:
    return entry.model_copy(update={"environment": dict(environment)})


def _order(entry: EntryRecord) -> tuple[Any, ...]:
    wanted = Bucket.parse(entry.bucket)
    shape = (list(Mode).index(entry.mode), entry.head_size, list(Op).index(entry.op), entry.variant, entry.dtype)
    return (*shape, entry.page, entry.group, entry.layout, entry.features, wanted.context, wanted.batch)


def _plain(entry: EntryRecord, environment: Mapping[str, str]) -> dict[str, Any]:
    values = entry.model_dump(mode="json", exclude_defaults=True)
    if entry.environment == dict(environment):
        del values["environment"]
    values["config"] = dict(sorted(entry.config.items()))
    return values


def _sweep(path: Path) -> None:
    """Remove the temporary files of writers that were killed; who holds the lock knows that none is in use."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)


def _set_aside(path: Path, faults: Sequence[str]) -> Path:
    """Give the file a second name, so that there is no moment without one; return it and warn."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{path.name}.broken-{stamp}"
    aside = next(each for n in range(1000) if not (each := path.with_name(f"{name}-{n}" if n else name)).exists())
    try:
        os.link(path, aside)
    except OSError:  # a file system without hard links
        with contextlib.suppress(shutil.SameFileError):
            shutil.copy2(path, aside)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    notices.warn(f"{faults[0]}{more}; the file as it was is kept as {aside.name}")
    return aside
