"""Writes the index that a wheel carries, from the built-in backends' YAML and kernel source; used by the build hook.

manifest.json        which shards there are, and the sha256 of every source
devices/<backend>/all.json                  kernels/<backend>/all.json
evidence/<backend>/<device>/<mode>/d<head size>.json
tuned/<backend>/<device>/<mode>-d<head size>-<op>-g<group>.json
expectations.yaml, expectations/all.json    kvreg's own list, and those of its entries that name variants
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg.core import builders, shards
from kvreg.core.backends import Backend
from kvreg.core.errors import BadFile
from kvreg.core.evidence_folders import evidence_files, traces_among
from kvreg.core.expectations import own
from kvreg.core.index import MANIFEST


def ship(backends: Sequence[Backend], place: Path, exceptions: Path | None = None) -> None:
    """Write the index of `backends` below `place`, and the list of exceptions with what select needs of it.

    Raises BadFile for a source that the index would leave out.

    Equal sources give equal bytes: neither a time nor a path of the building machine is in it.
    """
    manifest: dict[str, Any] = {"backends": [], "evidence": {}, "tuned": {}, "sha256": {}}
    for backend in backends:
        name = backend.name
        manifest["backends"].append(name)
        hashes = manifest["sha256"][name] = _digests(backend)
        _write(place / "devices" / name, "devices", builders.devices(backend), hashes)
        kernels = builders.kernels(backend)
        _refuse(kernels[builders.ALL]["faults"].values())
        _write(place / "kernels" / name, "kernels", kernels, hashes)
        manifest["evidence"][name] = {
            device.name: {
                mode.name: _write(
                    place / "evidence" / name / device.name / mode.name,
                    "evidence",
                    builders.evidence(traces_among(evidence_files(mode)), backend.evidence_dir),
                    hashes,
                )
                for mode in _folders(device)
            }
            for device in _folders(backend.evidence_dir)
        }
        manifest["tuned"][name] = {
            path.stem: _write(place / "tuned" / name / path.stem, "tuned", builders.tuned(path), hashes)
            for path in sorted(backend.tuned_dir.glob("*.yaml"))
        }
    place.mkdir(parents=True, exist_ok=True)
    if exceptions is not None:
        _write(place / own.KIND, own.KIND, builders.expectations(exceptions), {own.KIND: digest(exceptions)})
        (place / own.SHIPPED.name).write_bytes(exceptions.read_bytes())
    shards.write(place / f"{MANIFEST}.json", MANIFEST, MANIFEST, manifest, [])


def sources(backend: Backend) -> dict[str, Path]:
    """Return `kind/path` -> file for every YAML source and log of a backend."""
    found = {"devices": backend.device_file}
    for kind, folder in (("evidence", backend.evidence_dir), ("tuned", backend.tuned_dir)):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name.endswith((".yaml", ".jsonl.gz")):
                found[f"{kind}/{path.relative_to(folder).as_posix()}"] = path
    return found


def digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(backend: Backend) -> dict[str, str]:
    return {name: digest(path) for name, path in sources(backend).items()}


def _write(folder: Path, kind: str, parts: Mapping[str, Any], hashes: Mapping[str, str]) -> list[str]:
    """Write each part as a shard that names its kind's sources; return the parts' names."""
    faults = parts.get(builders.FAULTS, [])
    _refuse(each["problem"] if isinstance(each, Mapping) else each for each in faults)
    below = [[name, value] for name, value in hashes.items() if name == kind or name.startswith(f"{kind}/")]
    if kind == "evidence":
        prefix = f"evidence/{folder.parent.name}/{folder.name}/"
        below = [each for each in below if each[0].startswith(prefix)]
    elif kind == "tuned":
        below = [each for each in below if each[0] == f"tuned/{folder.name}.yaml"]
    folder.mkdir(parents=True, exist_ok=True)
    for part, payload in parts.items():
        shards.write(folder / f"{part}.json", kind, part, payload, below)
    return sorted(parts)


def _refuse(faults: Iterable[str]) -> None:
    for fault in faults:
        raise BadFile(f"the wheel's index: required sound sources, found {fault}")


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
