"""Which launch parameters a variant gets: the best tuned entry that may be used, else the variant's default.

Precedence: measured in the overlay, measured and shipped, estimated in the overlay, estimated and shipped, default.
Within each, the entry of the request's own bucket, then the next larger bucket's. An entry of another kernel hash or
device is never used; one that needs more shared memory than the device has, lacks a parameter that the launcher reads
or has one that cannot be launched, is refused with both sides, and the next that fits serves; one made with another
Triton, torch or driver is used with a note. `simulated` entries never come here: the reader of tuned files leaves them
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvreg.core.buckets import Bucket, bucket, stand_in
from kvreg.core.devices import Device, folder_name
from kvreg.core.launchable import Launchable
from kvreg.core.requests import Op, Request
from kvreg.core.selections import ConfigSource, Note
from kvreg.core.variants import Variant

Source = Literal["measured", "estimated"]

SOFT = ("triton", "torch", "driver")
"""Versions of an entry's environment that may differ: the entry is used, with a note."""

WARNED = ("tuned_fault", "tuned_memory", "tuned_config")
"""Notes on what is wrong with a tuned file itself: a warning as well, for nobody else will say so."""


def file_name(device: str) -> str:
    """Return the name of a device key's tuned file: h200.yaml, h200_mig-1g.18gb.yaml."""
    return f"{folder_name(device)}.yaml"


def part_of(mode: str, head_size: int, op: str, group: int) -> str:
    """Return the part of the index that holds the entries of a shape; a write's serve every group."""
    return f"{mode}-d{head_size}-{op}" if op == Op.WRITE else f"{mode}-d{head_size}-{op}-g{group}"


def command(
    device: str, mode: str, op: str, head_size: int, group: int, bucket: Bucket | str, dtype: str = "bf16"
) -> str:
    """Return the command that tunes a shape and bucket; a write has no group."""
    words = f"kvreg tune --device {device} --mode {mode} --op {op} --head-size {head_size}"
    words += "" if op == Op.WRITE else f" --group {group}"
    words += "" if dtype == "bf16" else f" --dtype {dtype}"
    return f"{words} --workload {bucket}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tuned entry, as select needs it."""

    variant: str
    op: str
    mode: str
    head_size: int
    group: int
    page: int
    dtype: str
    layout: str
    features: tuple[str, ...]
    bucket: Bucket
    config: Mapping[str, int]
    kernel_hash: str
    source: Source
    latency_us: float | None = None
    shared_bytes: int | None = None
    """Shared memory that the config needs, bytes a block; None where the tuner could not tell."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Entry:
        """Return the entry of an index record."""
        own = {name: value for name, value in record.items() if name in cls.__dataclass_fields__}
        own |= {"bucket": Bucket.parse(record["bucket"]), "features": tuple(record["features"])}
        return cls(**own)

    def serves(self, variant: Variant, request: Request) -> bool:
        """Whether the entry was tuned for this variant and the request's shape. A write does not know a group."""
        return (
            self.variant == str(variant.id)
            and self.op == variant.op
            and self.mode == variant.mode
            and self.head_size == request.head_size
            and (variant.op is Op.WRITE or self.group == request.group)
            and self.page == request.page
            and self.dtype == request.dtype
            and self.layout == str(request.stored_layout)
            and set(self.features) == set(request.features)
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """Entries of one tuned file."""

    file: str
    device: str
    """Key of the device that the file belongs to."""
    overlay: bool
    entries: tuple[Entry, ...]
    named: str | None = None
    """How the file names the device, and by which rule that is its key; None where it states the key."""


def command_of(entry: Entry, device: Device) -> str:
    """Return the command that tunes an entry's shape and bucket on a device."""
    return command(device.key, entry.mode, entry.op, entry.head_size, entry.group, entry.bucket, entry.dtype)


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be said of an entry: why it is not used, or what a user of it should know."""

    code: str
    problem: str
    remedy: str = ""
    """What mends it; empty where there is nothing to mend."""

    def note(self, entry: Entry, shelf: Shelf) -> Note:
        """Return it as a note of a selection."""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return Note(self.code, f"entry {entry.variant} {entry.bucket} in {shelf.file} {self.problem}{remedy}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Launch parameters, where they come from, and what a user should know of it."""

    config: Mapping[str, int]
    source: ConfigSource
    file: str | None = None
    notes: tuple[Note, ...] = ()


def choose(offered: Launchable, kernel_hash: str, shelves: Sequence[Shelf], versions: Mapping[str, str]) -> Choice:
    """Return the launch parameters of a variant. `versions` are those installed; a missing one is not compared."""
    variant, request, device = offered.variant, offered.request, offered.device
    notes: dict[tuple[str, str], Note] = {}  # (code, file): what holds for many buckets is said of the nearest one
    for shelf, entry in by_precedence(variant, request, shelves):
        refused = refusal(entry, shelf, kernel_hash, offered)
        if refused is not None:
            notes.setdefault((refused.code, shelf.file), refused.note(entry, shelf))
            continue
        exact = entry.bucket == bucket(variant.op, request.batch, request.context)
        source: ConfigSource = "estimated" if entry.source == "estimated" else "tuned" if exact else "bucket"
        reserved = (each.note(entry, shelf) for each in reservations(entry, shelf, device, versions))
        return Choice(entry.config, source, shelf.file, (*notes.values(), *reserved))
    return Choice(offered.default, "default", None, tuple(notes.values()))


def is_slice(device: Device) -> bool:
    """Whether a device is a MIG slice: part of a card, for which the whole card's entries are wrong."""
    return "/mig-" in device.key


def by_precedence(variant: Variant, request: Request, shelves: Sequence[Shelf]) -> Iterator[tuple[Shelf, Entry]]:
    """Yield the entries of the request's shape in the order in which they are tried."""
    wanted = bucket(variant.op, request.batch, request.context)
    for source in ("measured", "estimated"):
        for overlay in (True, False):
            rest = [
                (shelf, entry)
                for shelf in shelves
                if shelf.overlay is overlay
                for entry in shelf.entries
                if entry.source == source and entry.serves(variant, request)
            ]
            while (nearest := stand_in(wanted, (entry.bucket for _, entry in rest))) is not None:
                yield from (pair for pair in rest if pair[1].bucket == nearest)
                rest = [pair for pair in rest if pair[1].bucket != nearest]


def refusal(entry: Entry, shelf: Shelf, kernel_hash: str, offered: Launchable) -> Remark | None:
    """Return why an entry may not be used on a device with the kernel that is installed; None where it may."""
    device = offered.device
    again = f"`{command_of(entry, device)}`"
    if shelf.device not in (device.key, device.parent):
        return Remark(
            "tuned_device", f"belongs to {shelf.device}: not used on {device.key}", f"{again} tunes this one"
        )
    if shelf.device != device.key and is_slice(device):
        problem = f"was tuned on the whole {shelf.device}: a slice of it takes the default launch parameters"
        return Remark("tuned_slice", problem, f"{again} tunes the slice")
    if entry.kernel_hash != kernel_hash:
        problem = f"is of another kernel ({entry.kernel_hash[:8]}, now {kernel_hash[:8]}): not used"
        return Remark("tuned_stale", problem, f"{again} measures it again")
    limit = device.shared_per_block_max_bytes
    if limit is not None and entry.shared_bytes is not None and entry.shared_bytes > limit:
        problem = f"needs {entry.shared_bytes} B of shared memory, {device.key} has {limit} B: not used"
        return Remark("tuned_memory", problem, f"{again} finds one that fits")
    if (fault := offered.fault(entry.config)) is not None:
        return Remark("tuned_config", f"{fault}: not used", f"{again} writes a whole one")
    return None


def reservations(entry: Entry, shelf: Shelf, device: Device, versions: Mapping[str, str]) -> Iterator[Remark]:
    """Yield what a user should know of an entry that is used. `versions` are those installed."""
    if shelf.named is not None:
        yield Remark("tuned_name", f"is of {shelf.named}")
    if shelf.device != device.key:
        yield Remark("tuned_parent", f"was tuned on {shelf.device}, of which {device.key} is a sub-model")
    for name in SOFT:
        tuned_with, here = entry.environment.get(name), versions.get(name)
        if tuned_with and here and tuned_with != here:
            again = f"`{command_of(entry, device)}`"
            problem = f"was tuned with {name} {tuned_with}, here is {here}"
            yield Remark("tuned_versions", problem, f"{again} measures it here")
