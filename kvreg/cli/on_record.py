"""What is on record: sound validations, current or stale, and the files among them that are no evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreg.core.devices import folder_name
from kvreg.core.errors import UsageError
from kvreg.core.index import Index, Recorded
from kvreg.core.near import nearest


@dataclass(frozen=True, slots=True)
class Broken:
    """A trace file that counts for nothing: edited, without its log, moved, or no trace at all."""

    name: str
    """The start of the id that a trace at its place has: b200-none-d96-decode."""
    folder: str
    """Of the device."""
    mode: str
    file: Path
    problem: str

    def is_of(self, device: str | None, mode: str | None) -> bool:
        """Return whether it lies where records of a device key and mode do; None stands for any."""
        return (device is None or self.folder == folder_name(device)) and mode in (None, self.mode)


def sound(index: Index) -> Iterator[tuple[Recorded, str]]:
    """Yield every sound record, and whether it is current or stale."""
    seen: set[Path] = set()
    for backend in index.backends:
        hashes = index.kernels(backend).hashes
        for folder in index.evidence_folders(backend):
            for mode in index.modes_of(backend, folder):
                for head_size in index.head_sizes(backend, folder, mode):
                    for record in index.evidence(backend, folder, mode, head_size):
                        # Every backend reads the overlay; a record there is listed by the platform that it is of.
                        if record.file in seen or (record.overlay and record.evidence.variant not in hashes):
                            continue
                        seen.add(record.file)
                        fresh = hashes.get(record.evidence.variant) == record.evidence.kernel_hash
                        yield record, "current" if fresh else "stale"


def broken(index: Index) -> Iterator[Broken]:
    """Yield every trace file that is no evidence, once each."""
    seen: set[Path] = set()
    for backend in index.backends:
        for folder in index.evidence_folders(backend):
            for mode in index.modes_of(backend, folder):
                for fault in index.evidence_faults(backend, folder, mode):
                    if fault.file not in seen:
                        seen.add(fault.file)
                        place = "-".join(fault.file.stem.split("-")[:2])
                        yield Broken(f"{folder}-{mode}-{place}", folder, mode, fault.file, fault.problem)


def find(index: Index, trace_id: str) -> tuple[Recorded | Broken, str]:
    """Return the record that an id, or the start of one, names, and its state.

    A broken record's id is not to be trusted, so it is found by its place. Raises UsageError, with near misses, for
    an id that names none or several.
    """
    found: list[tuple[str, Recorded | Broken, str]] = [
        (each.evidence.trace, each, state) for each, state in sound(index)
    ]
    found += [(each.name, each, f"broken: {each.problem}") for each in broken(index)]
    exact = [(record, state) for name, record, state in found if name == trace_id]
    begun = [
        (record, state)
        for name, record, state in found
        if name.startswith(trace_id) or (isinstance(record, Broken) and trace_id.startswith(f"{name}-"))
    ]
    if len(exact or begun) == 1:
        return (exact or begun)[0]
    ids = [name for name, record, state in found if (record, state) in begun or not begun]
    near = tuple(ids) if begun else nearest(trace_id, ids, count=3)
    what = f"{len(begun)} of them" if begun else "no such record"
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`kvreg evidence list` shows them"
    raise UsageError(f"evidence {trace_id}: required the ID of one record, found {what}; {hint}", candidates=near)
