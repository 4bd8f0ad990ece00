"""Whether each record is what was written, and of the kernel as it is: digests, logs, hashes, the wheel's own list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core import overlay
from kvreg.core.backends import Backend
from kvreg.core.devices import folder_name
from kvreg.core.errors import BadFile
from kvreg.core.index import Index

if TYPE_CHECKING:
    from kvreg.core.traces import Trace


@dataclass(frozen=True, slots=True)
class Unsound:
    """One record that is not as it was written, or not of the kernel as it is."""

    kind: str
    """edited (never evidence), stale (its kernel has changed since), or unreadable (a folder of the overlay)."""
    file: Path
    problem: str


def examine(index: Index, device: str | None = None) -> tuple[int, list[Unsound]]:
    """Return how many trace files were looked at, and those that are not sound; nothing is taken from the index.

    `device` is the key of the only device to look at, None looks at all.
    """
    findings = [each for each in _changed_since_build(index) if _is_of(each.file, device)]
    if index.home is not None:
        findings += [Unsound("unreadable", *each) for each in overlay.closed(index.home) if each[0].name != "tuned"]
    checked = 0
    for found in _each(index, device):
        checked += 1
        if found is not None:
            findings.append(found)
    return checked, findings


def _each(index: Index, device: str | None) -> Iterator[Unsound | None]:
    """Yield what is wrong, or None, for each trace file on disk."""
    from kvreg.core.builders import ALL, kernels
    from kvreg.core.traces import problems, read_trace

    sound: dict[str, Trace] = {}
    resting: list[tuple[Trace, Path, list[str | None]]] = []
    current: dict[str, Mapping[str, str]] = {}
    for owner, path in _trace_files(index):
        if not _is_of(path, device):
            continue
        try:
            trace = read_trace(path)
        except BadFile as error:
            yield Unsound("edited", path, error.message)
            continue
        found = problems(trace, path)
        if found:
            yield Unsound("edited", path, "; ".join(found))
            continue
        sound[trace.id] = trace
        hashes: list[str | None] = []
        for backend in _owners(index, owner, trace):
            if backend.name not in current:  # hashing the kernels of a backend takes a second
                current[backend.name] = kernels(backend)[ALL]["hashes"]
            hashes.append(current[backend.name].get(trace.variant))
        if trace.basis is not None:
            resting.append((trace, path, hashes))  # the record that it names may come after it
        else:
            yield _stale(trace, path, hashes)
    if resting and device is not None:
        sound |= _elsewhere(index, device)
    for trace, path, hashes in resting:
        lost = _lost_basis(trace, sound)
        yield Unsound("edited", path, lost) if lost is not None else _stale(trace, path, hashes)


def _elsewhere(index: Index, device: str) -> dict[str, Trace]:
    """Return the sound traces of other devices, whose numerics a cross build may rest on."""
    from kvreg.core.traces import problems, read_trace

    found = {}
    for _, path in _trace_files(index):
        if not _is_of(path, device):
            with contextlib.suppress(BadFile):
                trace = read_trace(path)
                if not problems(trace, path):
                    found[trace.id] = trace
    return found


def _is_of(path: Path, device: str | None) -> bool:
    return device is None or path.parts[-3] == folder_name(device)


def _owners(index: Index, owner: Backend | None, trace: Trace) -> list[Backend]:
    """Return the backends that a trace may be of: its folder's, or every one of its platform."""
    return [owner] if owner is not None else [each for each in index.backends if each.platform == trace.platform]


def _stale(trace: Trace, path: Path, hashes: Sequence[str | None]) -> Unsound | None:
    if trace.kernel_hash in hashes:
        return None
    now = next((each for each in hashes if each), None)
    text = f"kernel {trace.kernel_hash[:8]}, now {now[:8]}" if now else f"{trace.variant} is no variant now"
    return Unsound("stale", path, text)


def _lost_basis(trace: Trace, sound: Mapping[str, Trace]) -> str | None:
    """Return why the numerics that a cross build names are not its own; None where they are."""
    assert trace.basis is not None
    found = sound.get(trace.basis.id)
    if found is None:
        return f"its numerics, {trace.basis.id}, are gone"
    if (found.digest, found.kernel_hash) != (trace.basis.digest, trace.kernel_hash):
        return f"its numerics, {trace.basis.id}, are of another run or kernel"
    return None


def _changed_since_build(index: Index) -> Iterator[Unsound]:
    """Yield the traces of a wheel whose bytes are not those that its index was made of."""
    from kvreg.core.shipping import digest, sources

    for backend in index.backends:
        built = index.shipped_digests.get(backend.name)
        if built is None:
            continue
        files = sources(backend)
        for name, expected in built.items():
            if name.startswith("evidence/") and name.endswith(".yaml"):
                if name not in files:
                    yield Unsound("edited", backend.evidence_dir / name.removeprefix("evidence/"), "is gone")
                elif digest(files[name]) != expected:
                    yield Unsound("edited", files[name], "is not the file that the wheel's index was made of")


def _trace_files(index: Index) -> Iterator[tuple[Backend | None, Path]]:
    """Yield (backend, file) of every trace; the overlay's belong to no backend's folder."""
    if index.home is not None:
        for path in sorted((index.home / "evidence").glob("*/*/*.yaml")):
            yield None, path
    for backend in index.backends:
        for path in sorted(backend.evidence_dir.glob("*/*/*.yaml")):
            yield backend, path
