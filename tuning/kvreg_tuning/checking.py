"""What is wrong with the tuned files of this machine, each finding with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvreg.core import overlay
from kvreg.core.shipping import digest, sources
from kvreg.core.tuned import file_name
from kvreg_tuning.stock import Fault, Item, State, Stock

Kind = Literal[
    "broken",
    "misplaced",
    "device",
    "variant",
    "stale",
    "memory",
    "parameters",
    "edited",
    "versions",
    "resources",
    "unreadable",
]

_KINDS: Mapping[State, Kind] = {
    "stale": "stale",
    "too big": "memory",
    "incomplete": "parameters",
    "no variant": "variant",
    "unknown device": "device",
    "other versions": "versions",
}

_LEAVE = "leave it, or take the entry out of the file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: Kind
    file: Path
    problem: str
    remedy: str

    @property
    def is_soft(self) -> bool:
        """Whether select uses the entry all the same: it was made with other versions."""
        return self.kind == "versions"


def findings(stock: Stock) -> Iterator[Finding]:
    """Yield what is wrong: files first, then entries. A file that is never read is one finding, whatever it holds."""
    for fault in stock.faults:
        yield Finding("broken", fault.path, fault.bare, _mending(fault))
    for folder, problem in overlay.closed(stock.index.home) if stock.index.home is not None else ():
        if folder.name == "tuned":
            yield Finding("unreadable", folder, problem, "mend its rights, or move it away")
    for place in stock.places:
        if not place.is_read and stock.device(place.device) is not None:
            right = place.path.with_name(file_name(place.device))
            problem = f"belongs to {place.device}, whose file is {right.name}: it is never read"
            yield Finding("misplaced", place.path, problem, f"`kvreg tuned merge {place.path} --into {right}`")
    for item in stock.items:
        if item.state in _KINDS:
            yield _of_item(item)
    yield from _changed_since_build(stock)


def _mending(fault: Fault) -> str:
    """Return what mends a file: a run sets a damaged one aside, and ends before its first trial for any other."""
    if not fault.path.is_file():  # a folder or a pipe
        return "move it away, or put a file in its place"
    if fault.is_newer:
        return "use the kvreg that wrote it, which is newer, or move it away: `kvreg tune` ends with 2 until then"
    if not _is_readable(fault.path):
        return "give this user the right to read it, or move it away: `kvreg tune` ends with 2 until then"
    return "the next `kvreg tune` for this device sets the file aside and keeps its good entries"


def _is_readable(path: Path) -> bool:
    try:
        path.open("rb").close()
    except OSError:
        return False
    return True


def _of_item(item: Item) -> Finding:
    problem = "; ".join(remark.problem for remark in item.remarks)
    remedy = next((remark.remedy for remark in item.remarks if remark.remedy), "")
    return Finding(_KINDS[item.state], item.place.path, f"{item.entry}: {problem}", remedy or _LEAVE)


def _changed_since_build(stock: Stock) -> Iterator[Finding]:
    """Yield the tuned files of a wheel that are not those that its index, which select reads, was made of."""
    for backend in stock.index.backends:
        built = stock.index.shipped_digests.get(backend.name)
        if built is None:
            continue
        remedy = "reinstall kvreg; `kvreg tune` writes into KVREG_HOME"
        found = {name: path for name, path in sources(backend).items() if name.startswith("tuned/")}
        expected = {name: value for name, value in built.items() if name.startswith("tuned/")}
        for name in sorted(found.keys() | expected.keys()):
            path = found.get(name, backend.tuned_dir / name.removeprefix("tuned/"))
            if name not in found:
                yield Finding("edited", path, "is gone, though the installed index holds it", remedy)
            elif expected.get(name) != digest(path):
                yield Finding("edited", path, "is not the file that the installed index was made of", remedy)
