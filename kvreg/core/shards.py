"""Derived JSON shards: what select reads instead of YAML. A shard is two lines, a header and its payload.

    {"schema": 4, "kind": "evidence", "part": "d96", "sources": [[path, size, mtime_ns], ...], "crc32": ...}
    {...payload...}

A cache shard lies under KVREG_HOME and names each source with its size and mtime_ns: any difference rebuilds it. A
shipped shard lies in the wheel (`kvreg/_index`), names each source with its sha256, and is read without a look at the
sources. A shard that is missing, cut off, damaged or of another origin is rebuilt, never trusted and never fatal;
a folder that cannot be written costs one warning and the time of a rebuild.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg.core import notices

SCHEMA = 4
"""2: evidence names its features; 3: its launch parameters and refusals; 4: tuned entries are checked word by word,
and divided by op and group too. A shard of another number is rebuilt."""
PARTS = "parts"
"""Name of the shard that lists the parts that a set of sources gave."""

Payload = Any
"""What json reads: objects, lists, texts, numbers, booleans and null."""

_RACY_NS = 100_000_000
"""A source younger than this may change once more without a new mtime (file clocks tick every 1 to 10 ms)."""


class Cache:
    """The shards below one folder; `folder` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._unkept: dict[tuple[str, str, str], tuple[list[list[Any]], Mapping[str, Payload]]] = {}

    def part(
        self,
        kind: str,
        name: str,
        part: str,
        sources: Sequence[str | Path],
        build: Callable[[], Mapping[str, Payload]],
    ) -> Payload | None:
        """Return one part of what `build` derives from `sources`; None when the sources hold no such part.

        The part named PARTS is the list of the others. `build` is called only when the shard on disk is not of
        exactly these sources; it returns every part at once.
        """
        if not sources:
            return None
        began = time.time_ns()
        paths = sorted(os.fspath(path) for path in sources)
        stamps = [stamp(path) for path in paths]
        place = self._place(kind, name, paths)
        if place is not None:
            payload = read(place / f"{part}.json", kind, part, stamps)
            if payload is not None:
                return payload
            known = read(place / f"{PARTS}.json", kind, PARTS, stamps)
            if isinstance(known, list) and part not in known:
                return None
        # What no disk keeps is kept here, for one set of sources has many parts.
        key = kind, name, stamps[0][0]
        known_stamps, built = self._unkept.get(key, ([], {}))
        if known_stamps != stamps:
            built = build()
            settled = all(each[2] < began - _RACY_NS for each in stamps)
            if settled and (place is None or not self._store(place, kind, built, stamps)):
                self._unkept[key] = stamps, built
        return sorted(built) if part == PARTS else built.get(part)

    def _place(self, kind: str, name: str, sources: Sequence[str]) -> Path | None:
        """Return the folder of the shards of sorted sources; checkouts that share a KVREG_HOME get one each."""
        if self.folder is None:
            return None
        # Of sorted texts the first and the last share no more than all do.
        origin = os.path.commonpath([os.path.dirname(sources[0]), os.path.dirname(sources[-1])])
        return self.folder / kind / f"{name}-{zlib.crc32(origin.encode()):08x}"

    def _store(self, place: Path, kind: str, built: Mapping[str, Payload], stamps: list[list[Any]]) -> bool:
        try:
            place.mkdir(parents=True, exist_ok=True)
            for part, payload in built.items():
                write(place / f"{part}.json", kind, part, payload, stamps)
            write(place / f"{PARTS}.json", kind, PARTS, sorted(built), stamps)
        except OSError as error:
            notices.warn(
                f"KVREG_HOME: required a folder that can be written, found {self.folder} ({error.strerror}); "
                "every call reads YAML until it can keep its index"
            )
            return False
        return True


def stamp(path: str) -> list[Any]:
    """Return [path, size, mtime_ns]; a file that vanished has size -1, which no file has."""
    try:
        found = os.stat(path)
    except OSError:
        return [path, -1, 0]
    return [path, found.st_size, found.st_mtime_ns]


def read(path: Path, kind: str, part: str, sources: list[list[Any]] | None) -> Payload | None:
    """Return a shard's payload; None when it is missing, damaged, of another kind or of other sources.

    `sources` None accepts any: a shipped shard is as good as the wheel that it lies in.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        if not isinstance(header, dict) or [header.get(key) for key in ("schema", "kind", "part")] != [
            SCHEMA,
            kind,
            part,
        ]:
            return None
        if sources is not None and header.get("sources") != sources:
            return None
        if header.get("crc32") != zlib.crc32(body):
            return None
        return json.loads(body)
    except (OSError, ValueError, RecursionError):
        return None


def write(path: Path, kind: str, part: str, payload: Payload, sources: list[list[Any]]) -> None:
    """Write a shard by temporary file and rename: a reader sees the old one or the new one, whole."""
    body = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    header = {"schema": SCHEMA, "kind": kind, "part": part, "sources": sources, "crc32": zlib.crc32(body)}
    replace_file(path, json.dumps(header, separators=(",", ":")).encode() + b"\n" + body, durable=False)


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Put `content` at `path` in one step; its folder must exist. Raises OSError and leaves no partial file.

    `durable` waits for the disk, the folder's entry included: right for records, needless for a cache, which is
    rebuilt when it is damaged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, as far as its file system can say so."""
    # Some network file systems refuse to sync a folder; the file's own content is safe there already.
    with contextlib.suppress(OSError):
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
