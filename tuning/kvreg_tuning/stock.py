"""Every tuned entry that this machine has, read from the YAML itself, and whether select would use it here.

    for item in Stock.open().items:
        item.entry.latency_us, item.place.path, item.state

The overlay's files belong to the platform of their device. A broken file is among `faults`; its good entries are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from kvreg.core import notices
from kvreg.core.backends import Backend
from kvreg.core.buckets import Bucket
from kvreg.core.constraints import failed
from kvreg.core.devices import Device
from kvreg.core.errors import BadFile, NewerFile, UnknownDevice
from kvreg.core.index import Index
from kvreg.core.launchable import Launchable
from kvreg.core.layouts import LayoutId
from kvreg.core.lookup import Lookup
from kvreg.core.modes import Mode
from kvreg.core.overlay import unreadable
from kvreg.core.requests import Op, Request
from kvreg.core.resolve import resolve_among
from kvreg.core.tuned import Entry, Remark, Shelf, file_name, refusal, reservations
from kvreg.core.tuned_files import EntryRecord, index_records, read
from kvreg.core.variants import Variant

State = Literal[
    "current", "other versions", "stale", "too big", "incomplete", "no variant", "unknown device", "never read"
]
"""current and other versions serve; the rest is never used."""

_STATES: Mapping[str, State] = {"tuned_stale": "stale", "tuned_memory": "too big", "tuned_config": "incomplete"}


@dataclass(frozen=True, slots=True)
class Place:
    """One tuned file."""

    path: Path
    overlay: bool
    device: str
    """The key of the device that it belongs to, or what it states where nobody knows such a device."""

    @property
    def is_read(self) -> bool:
        """Whether select ever looks into it: it has the name of its device's file."""
        return self.path.name == file_name(self.device)


@dataclass(frozen=True, slots=True)
class Fault:
    """What cannot be read of a tuned file."""

    path: Path
    problem: str
    """One line that names the file; of a whole file its remedy too."""
    is_whole: bool = False
    """Whether nothing of the file can be used."""
    is_newer: bool = False
    """Whether nothing is wrong with the file but that a newer kvreg wrote it."""

    @property
    def bare(self) -> str:
        """The problem for whoever names the file and a remedy beside it."""
        text = self.problem.rpartition("; ")[0] if self.is_whole else self.problem
        text = re.sub(r"^:(\d+): ", r"line \1: ", text.removeprefix(str(self.path)))
        return text.lstrip(":, ")


@dataclass(frozen=True, slots=True)
class Item:
    """One entry, where it lies, and what select makes of it on its own device."""

    place: Place
    entry: EntryRecord
    flat: Entry
    """The entry as select has it."""
    state: State
    remarks: tuple[Remark, ...] = ()
    """Why it is not used, or what a user should know of it."""


class Stock:
    """Reads all tuned files once; an object for one command."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.faults: list[Fault] = []
        self.places: list[Place] = []
        self.items: list[Item] = []
        self._devices: dict[str, Device | None] = {}
        self._hashes: dict[str, Mapping[str, str]] = {}
        self._versions: dict[str, Mapping[str, str]] = {}
        for path, overlay in self._files():
            self._take(path, overlay)

    @classmethod
    def open(cls) -> Stock:
        """Return what the installed backends and KVREG_HOME hold."""
        return cls(Index.open())

    def device(self, name: str) -> Device | None:
        """Return the device of a key or any other name; None where nobody knows one."""
        if name not in self._devices:
            try:
                self._devices[name] = resolve_among(name, self.index.devices()).device
            except UnknownDevice:
                self._devices[name] = None
        return self._devices[name]

    def key_of(self, name: str) -> str:
        """Return what a tuned file calls its device as a key, or as it is where nobody knows it."""
        device = self.device(name)
        return device.key if device is not None else name

    def kernel_hash(self, device: Device, variant: str) -> str | None:
        """Return the hash of the kernel that is installed; None where the platform has no such variant."""
        found = self._variants.get((device.platform, variant))
        return self._hashes_of(found[0]).get(variant) if found is not None else None

    def fault(self, device: Device, entry: EntryRecord) -> str | None:
        """Return why an entry's variant cannot be launched with what it holds; None where nothing tells."""
        found = self._variants.get((device.platform, entry.variant))
        if found is None:
            return None
        return Launchable(*found, device, request_of(entry, device)).fault(entry.config)

    def judge(self, place: Place, entry: EntryRecord) -> Item:
        """Return what select makes of an entry on the device that its file belongs to."""
        device, flat = self.device(place.device), Entry.of(index_records([entry])[0])
        if device is None:
            remark = Remark("tuned_device", "is of a device that nobody knows", "`kvreg devices` lists the known ones")
            return Item(place, entry, flat, "unknown device", (remark,))
        if not place.is_read:
            right = file_name(place.device)
            remark = Remark("tuned_place", f"lies in a file that is never read: the one of {device.key} is {right}")
            return Item(place, entry, flat, "never read", (remark,))
        found = self._variants.get((device.platform, entry.variant))
        if found is None:
            remark = Remark("tuned_variant", f"is of no variant that {device.platform} has now: never used")
            return Item(place, entry, flat, "no variant", (remark,))
        if (why := _unreachable(found[1], entry, device)) is not None:
            return Item(place, entry, flat, "no variant", (Remark("tuned_variant", why),))
        offered = Launchable(*found, device, request_of(entry, device))
        shelf = Shelf(str(place.path), device.key, place.overlay, (flat,))
        refused = refusal(flat, shelf, self._hashes_of(found[0]).get(entry.variant, ""), offered)
        if refused is not None:
            return Item(place, entry, flat, _STATES[refused.code], (refused,))
        remarks = tuple(reservations(flat, shelf, device, self.versions(device)))
        return Item(place, entry, flat, "other versions" if remarks else "current", remarks)

    def shelves(self, *devices: str | None) -> list[Shelf]:
        """Return the entries of some device keys' files as select has them; of files that it reads."""
        return [
            Shelf(
                str(place.path),
                place.device,
                place.overlay,
                tuple(item.flat for item in self.items if item.place is place),
            )
            for place in self.places
            if place.is_read and (not devices or place.device in devices)
        ]

    def offered(self, device: Device, variant: str) -> tuple[Backend, Variant]:
        """Return a variant of a device's platform and the backend that offers it; raises KeyError for none."""
        return self._variants[device.platform, variant]

    def variants(self, device: Device, mode: Mode, op: Op) -> list[Variant]:
        """Return the variants that a device's platform offers for an op of a mode."""
        return [
            variant
            for (platform, _), (_, variant) in self._variants.items()
            if (platform, variant.mode, variant.op) == (device.platform, mode, op)
        ]

    def versions(self, device: Device) -> Mapping[str, str]:
        """Return the versions that run on a device here."""
        if device.key not in self._versions:
            self._versions[device.key] = Lookup(self.index, device, 0).versions
        return self._versions[device.key]

    def _files(self) -> Iterator[tuple[Path, bool]]:
        if self.index.home is not None:
            folder = self.index.home / "tuned"
            if (problem := unreadable(folder)) is not None:
                notices.warn(problem)
            yield from ((path, True) for path in sorted(folder.glob("*.yaml")))
        for backend in self.index.backends:
            yield from ((path, False) for path in sorted(backend.tuned_dir.glob("*.yaml")))

    def _take(self, path: Path, overlay: bool) -> None:
        try:
            found = read(path)
        except BadFile as error:
            self.faults.append(Fault(path, error.message, is_whole=True, is_newer=isinstance(error, NewerFile)))
            return
        place = Place(path, overlay, self.key_of(found.device))
        self.places.append(place)
        self.faults += [Fault(path, problem) for problem in found.faults]
        self.items += [self.judge(place, entry) for entry in found.entries]

    @cached_property
    def _variants(self) -> Mapping[tuple[str, str], tuple[Backend, Variant]]:
        return {
            (backend.platform, str(variant.id)): (backend, variant)
            for backend in reversed(self.index.backends)  # the one that is named first has the last word
            for variant in backend.variants()
        }

    def _hashes_of(self, backend: Backend) -> Mapping[str, str]:
        if backend.name not in self._hashes:
            self._hashes[backend.name] = self.index.kernels(backend).hashes
        return self._hashes[backend.name]


def _unreachable(variant: Variant, entry: EntryRecord, device: Device) -> str | None:
    """Return why no request that the variant takes finds an entry of it; None where one does."""
    if (variant.op, variant.mode) != (entry.op, entry.mode):
        return f"says {entry.op} of {entry.mode}, and {variant.id} is {variant.op} of {variant.mode}: never used"
    for reason in failed(variant, request_of(entry, device), device):
        return (
            f"is of what {variant.id} does not take ({reason.field} {reason.found}, not {reason.required}): never used"
        )
    return None


def request_of(entry: EntryRecord, device: Device) -> Request:
    """Return the request that an entry answers; one KV head stands for any number."""
    work = Bucket.parse(entry.bucket)
    return Request(
        device=device.key,
        mode=entry.mode,
        head_size=entry.head_size,
        q_heads=entry.group,
        kv_heads=1,
        page=entry.page,
        dtype=entry.dtype,
        features=tuple(entry.features),
        batch=work.batch,
        context=max(work.context, 1),
        layout=LayoutId.parse(entry.layout),
    )
