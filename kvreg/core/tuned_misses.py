"""Why nothing tuned serves: what was looked for, the entries that came nearest and what differs in each of them.

Only an explanation comes here: it reads every tuned entry of the device and its kin, which a selection never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvreg.core.buckets import Bucket, bucket
from kvreg.core.devices import Device
from kvreg.core.index import Index
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Selection
from kvreg.core.shelves import all_shelves
from kvreg.core.tuned import Entry, Shelf, command, part_of

NEAREST = 3
"""Entries that an explanation names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The key of a look-up."""

    device: str
    variant: str
    op: Op
    mode: str
    head_size: int
    group: int
    page: int
    dtype: str
    layout: str
    features: tuple[str, ...]
    bucket: Bucket
    kernel_hash: str | None = None
    """Of the installed kernel; None where it is not known."""
    shared_limit: int | None = None
    """Shared memory that the device has, bytes a block."""

    @classmethod
    def of(cls, request: Request, device: Device, variant: str, op: Op, mode: str, kernel_hash: str | None) -> Wanted:
        """Return what `request` looks for when `variant` serves it."""
        return cls(
            device=device.key,
            variant=variant,
            op=op,
            mode=mode,
            head_size=request.head_size,
            group=request.group,
            page=request.page,
            dtype=request.dtype,
            layout=str(request.of(Mode(mode)).stored_layout),  # a request for every mode has each mode's own
            features=request.features,
            bucket=bucket(op, request.batch, request.context),
            kernel_hash=kernel_hash,
            shared_limit=device.shared_per_block_max_bytes,
        )

    def __str__(self) -> str:
        group = "" if self.op is Op.WRITE else f", group {self.group}"
        shape = f"head size {self.head_size}{group}, page {self.page}, {self.dtype}, {self.layout}"
        return f"{self.variant} on {self.device}: {shape}, {'+'.join(self.features)}, {self.bucket}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which an entry is not what was looked for."""

    field: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} {self.found}"


@dataclass(frozen=True, slots=True)
class Near:
    """An entry that does not serve, and all that differs."""

    entry: Entry
    file: str
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.differences)) or "no field, but it is refused (see the notes)"


@dataclass(frozen=True, slots=True)
class Miss:
    """A look-up that found nothing to use."""

    wanted: Wanted
    near: tuple[Near, ...]
    """The nearest entries, those with the fewest differences first."""

    @property
    def command(self) -> str:
        """What would tune it."""
        asked = self.wanted
        shape = (asked.device, asked.mode, asked.op, asked.head_size, asked.group, asked.bucket, asked.dtype)
        return command(*shape)

    def __str__(self) -> str:
        near = "; ".join(f"{each} in {each.file}" for each in self.near)
        found = f"nearest entries differ in: {near}" if near else "there is no entry of this op"
        return f"no tuned entry for {self.wanted}; {found}; `{self.command}` tunes it"


def misses(answer: Selection, index: Index) -> dict[str, tuple[Miss, ...]]:
    """Return, for each selected mode, the ops that run with their variant's default for want of an entry."""
    device = answer.resolution.device
    shelves = list(kin(index, device))
    found: dict[str, tuple[Miss, ...]] = {}
    for result in answer.results:
        wanted = [
            Wanted.of(answer.request, device, chosen.variant, op, result.mode, chosen.evidence.kernel_hash)
            for op, chosen in result.ops.items()
            if chosen.config_source == "default"
        ]
        if wanted:
            found[result.mode] = tuple(miss(each, shelves) for each in wanted)
    return found


def kin(index: Index, device: Device) -> Iterator[Shelf]:
    """Yield every tuned entry of the device, its parent and the other cards of its arch."""
    keys = [device.key, *([device.parent] if device.parent else [])]
    keys += [each.key for each in index.devices() if each.arch == device.arch and each.platform == device.platform]
    seen: set[tuple[str, str]] = set()
    for backend in index.backends:
        if backend.platform != device.platform:
            continue
        for key in dict.fromkeys(keys):
            for shelf in all_shelves(index, backend, key):
                first = shelf.entries[0]
                # Backends of one platform share the overlay.
                if (mark := (shelf.file, part_of(first.mode, first.head_size, first.op, first.group))) not in seen:
                    seen.add(mark)
                    yield shelf


def miss(wanted: Wanted, shelves: Sequence[Shelf]) -> Miss:
    """Return a miss with the nearest entries of its op."""
    candidates = [
        Near(entry, shelf.file, tuple(_differences(wanted, entry, shelf)))
        for shelf in shelves
        for entry in shelf.entries
        if entry.op == wanted.op
    ]
    ranked = sorted(candidates, key=lambda near: _distance(wanted, near))
    return Miss(wanted, tuple(ranked[:NEAREST]))


def _differences(wanted: Wanted, entry: Entry, shelf: Shelf) -> Iterator[Difference]:
    fields = ["mode", "variant", "head_size", "group", "page", "dtype", "layout"]
    if wanted.op is Op.WRITE:
        fields.remove("group")  # a write does not know of query heads
    if shelf.device != wanted.device:
        yield Difference("device", wanted.device, shelf.device)
    for name in fields:
        asked, found = str(getattr(wanted, name)), str(getattr(entry, name))
        if asked != found:
            yield Difference(name, asked, found)
    if set(entry.features) != set(wanted.features):
        yield Difference("features", "+".join(wanted.features), "+".join(entry.features))
    if not entry.bucket.covers(wanted.bucket):
        yield Difference("bucket", str(wanted.bucket), str(entry.bucket))
    if wanted.kernel_hash is not None and entry.variant == wanted.variant and entry.kernel_hash != wanted.kernel_hash:
        yield Difference("kernel", wanted.kernel_hash[:8], entry.kernel_hash[:8])
    if wanted.shared_limit is not None and (entry.shared_bytes or 0) > wanted.shared_limit:
        yield Difference("shared memory", f"at most {wanted.shared_limit} B", f"{entry.shared_bytes} B")


def _distance(wanted: Wanted, near: Near) -> tuple[int, bool, int, int, str]:
    """Fewest differences first, then the same mode, the nearest head size and the nearest amount of work."""
    entry = near.entry
    work = abs(entry.bucket.size.bit_length() - wanted.bucket.size.bit_length())
    return len(near.differences), entry.mode != wanted.mode, abs(entry.head_size - wanted.head_size), work, str(entry)
