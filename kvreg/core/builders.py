"""What the derived index is made of: slow readers of YAML and kernel source that give plain JSON, part by part.

Only a rebuild and the wheel's build hook come here; this module's functions import YAML and pydantic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvreg.core.backends import Backend
from kvreg.core.errors import BadFile

ALL = "all"
"""The one part of an index that is not divided."""
FAULTS = "faults"
"""The part that holds one line for each source or entry that was left out."""


def devices(backend: Backend) -> dict[str, Any]:
    """Return every device of a backend as `Device.to_json` gives it."""
    return {ALL: [device.to_json() for device in backend.devices()]}


def kernels(backend: Backend) -> dict[str, Any]:
    """Return variant id -> kernel hash; a variant whose source cannot be hashed has a text that says why instead."""
    from kvreg.core.kernelhash import kernel_hash

    hashes: dict[str, str] = {}
    faults: dict[str, str] = {}
    for variant in backend.variants():
        try:
            hashes[str(variant.id)] = kernel_hash(variant)
        except BadFile as error:
            faults[str(variant.id)] = error.message
    return {ALL: {"hashes": hashes, "faults": faults}}


def evidence(traces: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Return `d<head>` -> evidence records of the sound traces, and the faults of the others.

    Files are named by their path below the evidence folder, so that the wheel's index holds everywhere.
    """
    from kvreg.core.traces import problems, read_trace, to_evidence

    parts: dict[str, list[dict[str, Any]]] = {}
    faults: list[dict[str, Any]] = []
    for path in sorted(traces):
        try:
            trace = read_trace(path)
            found = problems(trace, path)
        except BadFile as error:
            faults.append({"file": _below(path, folder), "problem": error.message})
            continue
        if found:
            faults.append({"file": _below(path, folder), "problem": f"{trace.id}: {'; '.join(found)}"})
        else:
            record = {**asdict(to_evidence(trace)), "ended": trace.ended, "file": _below(path, folder)}
            parts.setdefault(f"d{trace.head_size}", []).append(record)
    return {**parts, FAULTS: faults} if faults else dict(parts)


def expectations(path: Path) -> dict[str, Any]:
    """Return the entries of kvreg's own list of exceptions that name variants; raises BadFile for a bad list."""
    from kvreg.core.expectations.derived import records

    return {ALL: records(path)}


def tuned(path: Path) -> dict[str, Any]:
    """Return shape (`part_of`) -> entries of one tuned file, and the faults of the entries left out."""
    from kvreg.core.tuned import part_of
    from kvreg.core.tuned_files import index_records, read

    try:
        found = read(path)
    except BadFile as error:
        return {FAULTS: [error.message]}
    parts: dict[str, dict[str, Any]] = {}
    for record in index_records(found.entries):
        part = part_of(record["mode"], record["head_size"], record["op"], record["group"])
        parts.setdefault(part, {"device": found.device, "entries": []})["entries"].append(record)
    return {**parts, FAULTS: list(found.faults)} if found.faults else dict(parts)


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
