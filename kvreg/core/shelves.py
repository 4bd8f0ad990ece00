"""The tuned entries of a device, as the derived index holds them, and what its files lost."""

from __future__ import annotations

from kvreg.core import shards
from kvreg.core.backends import Backend
from kvreg.core.errors import UnknownDevice
from kvreg.core.index import FAULTS, Index
from kvreg.core.tuned import Entry, Shelf


def shelves(index: Index, backend: Backend, device: str, part: str) -> list[Shelf]:
    """Return the entries of a device key and shape (`tuned.part_of`), the overlay's first."""
    found: list[Shelf] = []
    for path, overlay in index.tuned_files(backend, device):
        shelf = index.tuned_part(backend, path, overlay, part)
        if shelf:
            key, named = device_of(index, shelf["device"])
            entries = tuple(Entry.of(record) for record in shelf["entries"])
            found.append(Shelf(str(path), key, overlay, entries, named))
    return found


def all_shelves(index: Index, backend: Backend, device: str) -> list[Shelf]:
    """Return every entry of a device key: a shelf for each file and shape. Reads all shards."""
    parts = {
        part
        for path, overlay in index.tuned_files(backend, device)
        for part in index.tuned_part(backend, path, overlay, shards.PARTS) or ()
    }
    return [shelf for part in sorted(parts - {FAULTS}) for shelf in shelves(index, backend, device, part)]


def faults(index: Index, backend: Backend, device: str) -> list[str]:
    """Return one line for each tuned file or entry of a device key that cannot be read."""
    return [
        fault
        for path, overlay in index.tuned_files(backend, device)
        for fault in index.tuned_part(backend, path, overlay, FAULTS) or ()
    ]


def device_of(index: Index, name: str) -> tuple[str, str | None]:
    """Return what a tuned file calls its device as a key, and the rule where that is another of its names.

    A name that nobody knows stays as it is: it is the key of no device, so its entries serve none.
    """
    if any(device.key == name for device in index.devices()):
        return name, None
    from kvreg.core.resolve import resolve_among  # the tuner writes keys, so this is rare

    try:
        found = resolve_among(name, index.devices())
    except UnknownDevice:
        return name, None
    key = found.device.key
    return key, None if key == name else f"{name!r}, which is {key} by {found.matched_by.replace('_', ' ')}"
