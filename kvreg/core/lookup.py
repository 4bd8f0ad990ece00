"""What the index says about one device and head size, each thing read once however many variants ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kvreg.core import installed, shelves
from kvreg.core.backends import Backend
from kvreg.core.devices import ARCH_PREFIX, Device, folder_name
from kvreg.core.evidence import Evidence
from kvreg.core.index import Index, Kernels, Recorded
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.selections import Note
from kvreg.core.tuned import SOFT, Shelf, part_of
from kvreg.core.variants import Variant

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

CARD_PLATFORMS = ("cuda", "rocm", "xpu")


class Lookup:
    """Reads for one request; an object for each `select`."""

    def __init__(self, index: Index, device: Device, head_size: int) -> None:
        self.index = index
        self.device = device
        self.head_size = head_size
        self._kernels: dict[str, Kernels] = {}
        self._records: dict[tuple[str, Mode], list[Recorded]] = {}
        self._variants: dict[str, Sequence[Variant]] = {}

    def backends(self) -> list[Backend]:
        """Return the backends of the device's platform."""
        return [each for each in self.index.backends if each.platform == self.device.platform]

    def variants(self, backend: Backend) -> Sequence[Variant]:
        """Return the variants of a backend."""
        if backend.name not in self._variants:
            self._variants[backend.name] = backend.variants()
        return self._variants[backend.name]

    def kernels(self, backend: Backend) -> Kernels:
        """Return the kernel hashes of a backend's variants."""
        if backend.name not in self._kernels:
            self._kernels[backend.name] = self.index.kernels(backend)
        return self._kernels[backend.name]

    def records(self, backend: Backend, mode: Mode) -> list[Recorded]:
        """Return the evidence of the device, its parent and the other cards of its arch."""
        key = backend.name, mode
        if key not in self._records:
            self._records[key] = [
                record
                for folder in self._folders(backend)
                for record in self.index.evidence(backend, folder, mode, self.head_size)
                if record.evidence.arch == self.device.arch
            ]
        return self._records[key]

    def fault_notes(self, backend: Backend, mode: Mode) -> Iterable[Note]:
        """Yield a note for each trace that would count here, had nobody edited it."""
        for folder in self._folders(backend):
            for fault in self.index.evidence_faults(backend, folder, mode):
                if fault.file.name.startswith(f"d{self.head_size}-"):
                    yield Note("bad_trace", f"{fault.file.name} of {folder} is no evidence: {fault.problem}")

    def shelves(self, backend: Backend, mode: Mode, op: Op, group: int) -> list[Shelf]:
        """Return the tuned entries of the device and its parent for one mode, op and group, and the head size."""
        part = part_of(mode, self.head_size, op, group)
        return [shelf for device in self._lenders for shelf in shelves.shelves(self.index, backend, device, part)]

    def expectations(self, variants: Iterable[str]) -> tuple[Touching, ...]:
        """Return the recorded exceptions of kvreg's own tests that may hold on the device and name these variants."""
        if not self._exceptions:
            return ()
        from kvreg.core.expectations.derived import concerning  # loaded already where there are some

        return concerning(variants, self._exceptions, self.device, self.versions)

    @cached_property
    def _exceptions(self) -> tuple[Touching, ...]:
        return self.index.expectations()

    @cached_property
    def tuned_faults(self) -> tuple[Note, ...]:
        """A note for each tuned file or entry of the device and its parent that cannot be read."""
        return tuple(
            Note("tuned_fault", line)
            for backend in self.backends()
            for device in self._lenders
            for line in shelves.faults(self.index, backend, device)
        )

    @cached_property
    def _lenders(self) -> tuple[str, ...]:
        """Keys of the devices whose tuned entries may be used here, or are told of."""
        return (self.device.key, *([self.device.parent] if self.device.parent is not None else []))

    def measured_elsewhere(self, backend: Backend, mode: Mode, op: Op, kernel_hash: str) -> Recorded | None:
        """Return a measured record of the same kernel on any device, its own platform's first; None without one.

        Platforms share kernels, and the hash covers all that a result depends on but the card and its compiler.
        """
        others = [each for each in self.index.backends if each.name != backend.name]
        for owner in (backend, *others):
            for folder in self.index.evidence_folders(owner):
                if folder.startswith(folder_name(ARCH_PREFIX)):
                    continue  # no card has run what stands there
                for record in self.index.evidence(owner, folder, mode, self.head_size):
                    found = record.evidence
                    if (found.kernel_hash, found.op, found.tier.rank) == (kernel_hash, op, 0):
                        return record
        return None

    def timed_near(self, backend: Backend, mode: Mode, variant: str, kernel_hash: str) -> Evidence | None:
        """Return the evidence of the device's next larger head size at which the same kernel was timed.

        Where no larger one was, that of the next smaller.
        """
        folder = folder_name(self.device.key)
        sizes = self.index.head_sizes(backend, folder, mode)
        larger = [size for size in sizes if size > self.head_size]
        smaller = [size for size in sizes if size < self.head_size]
        for head_size in (*larger, *reversed(smaller)):
            for record in self.index.evidence(backend, folder, mode, head_size):
                found = record.evidence
                if (found.variant, found.kernel_hash) == (variant, kernel_hash) and found.timings:
                    return found
        return None

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions installed here, as far as evidence and tuned entries name them.

        A torch built for the cpu launches nothing on a card: what stands beside it there says nothing of that card.
        """
        found = installed.versions(SOFT)
        foreign = self.device.platform in CARD_PLATFORMS and found.get("torch", "").endswith("+cpu")
        return {} if foreign else found

    @cached_property
    def _relatives(self) -> frozenset[str]:
        """Folder names of the device, its parent and every device of its arch."""
        keys = {self.device.key, self.device.parent or self.device.key}
        keys |= {each.key for each in self.index.devices() if each.arch == self.device.arch}
        return frozenset(folder_name(key) for key in keys)

    def _folders(self, backend: Backend) -> list[str]:
        """Return the evidence folders of the relatives, slices of their cards included."""
        return [
            folder
            for folder in self.index.evidence_folders(backend)
            if folder in self._relatives or folder.partition("_mig-")[0] in self._relatives
        ]
