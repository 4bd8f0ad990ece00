"""The derived index: what select knows of devices, kernels, evidence and tuned entries without reading any YAML.

Shipped shards (made by the wheel's build hook) answer for the packages of the wheel; everything else (a checkout, a
plug-in, the overlay under KVREG_HOME) is read through a cache under KVREG_HOME/cache/index, checked against its
sources at each start. Shards: devices/<backend>, kernels/<backend>, evidence/<backend>/<device>/<mode> by head size,
tuned/<backend>/<device> by mode, head size, op and group, so that what a select reads does not grow with what others
recorded; expectations: the entries of kvreg's own list that name variants. One module, since each reader makes the
same choice between what is shipped and the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.core import environment, notices, registry, shards
from kvreg.core.backends import Backend
from kvreg.core.devices import Device
from kvreg.core.evidence import Evidence, Refusal, Timing
from kvreg.core.evidence_folders import evidence_files, names_in, traces_among
from kvreg.core.expectations import own
from kvreg.core.overlay import unreadable
from kvreg.core.requests import Op
from kvreg.core.sources import package_files
from kvreg.core.tuned import file_name

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

ALL = "all"
FAULTS = "faults"
MANIFEST = "manifest"

SHIPPED = Path(__file__).parent.parent / "_index"
"""Present in a wheel only."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Evidence as the index holds it."""

    evidence: Evidence
    ended: str
    """When the validation ended (UTC ISO 8601)."""
    file: Path
    overlay: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A trace or tuned entry that is not used, and why."""

    file: Path
    problem: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """Hashes of a backend's variants, and why others have none."""

    hashes: Mapping[str, str]
    faults: Mapping[str, str]


def devices() -> tuple[Device, ...]:
    """Return every known device, built-in ones first."""
    return Index.open().devices()


class Index:
    """Reads shards for a set of backends; one object for one command."""

    def __init__(
        self,
        backends: Sequence[Backend],
        home: Path | None,
        shipped: Path | None = SHIPPED,
        exceptions: Path | None = None,
    ) -> None:
        self.backends = tuple(backends)
        self.home = home
        self._cache = shards.Cache(home / "cache" / "index" if home is not None else None)
        self._shipped = shipped
        self._exceptions = exceptions
        self._looked_at: dict[str, bool] = {}
        """Kinds of the overlay whose folder was tried, and whether it can be listed: if not, a warning, once."""

    @classmethod
    def open(cls, home: Path | None = None) -> Index:
        """Return the index of the installed backends and KVREG_HOME (the process's own where `home` is None)."""
        return _opened(home or environment.home())

    def devices(self) -> tuple[Device, ...]:
        """Return every backend's devices; a key belongs to the backend that is named first. Read once."""
        return self._devices

    @cached_property
    def _devices(self) -> tuple[Device, ...]:
        found: dict[str, Device] = {}
        for backend in self.backends:
            for device in self._devices_of(backend):
                if device.key not in found:
                    found[device.key] = device
                elif not device.is_arch:
                    notices.warn(f"backend {backend.name}: device {device.key} is known already; this one is left out")
        return tuple(found.values())

    def kernels(self, backend: Backend) -> Kernels:
        """Return the kernel hashes of a backend's variants, by variant id."""
        payload = self._shipped_part("kernels", backend.name, ALL)
        if payload is None:
            files = {*package_files("kvreg")} if backend.name in registry.BUILT_IN else set()
            for variant in backend.variants():
                for root in (*variant.kernels, variant.launcher):
                    files.update(self._package(root.partition(".")[0].partition(":")[0]))
            payload = self._cache.part(
                "kernels", backend.name, ALL, sorted(files), lambda: _builders().kernels(backend)
            )
        payload = payload or {"hashes": {}, "faults": {}}
        return Kernels(payload["hashes"], payload["faults"])

    def evidence_folders(self, backend: Backend) -> tuple[str, ...]:
        """Return the names of the device folders that hold evidence, shipped or in the overlay, sorted."""
        names = set(names_in(self._overlay("evidence")))
        if self._ships(backend):
            names.update(self._manifest["evidence"].get(backend.name, {}))
        else:
            names.update(names_in(backend.evidence_dir))
        return tuple(sorted(names))

    def modes_of(self, backend: Backend, folder: str) -> tuple[str, ...]:
        """Return the modes that a device folder has evidence for, sorted."""
        names = {name for root in self._evidence_roots(backend) for name in names_in(root / folder)}
        return tuple(sorted(names))

    def evidence(self, backend: Backend, folder: str, mode: str, head_size: int) -> tuple[Recorded, ...]:
        """Return the sound evidence of one device folder, mode and head size: the overlay's first."""
        return tuple(
            _recorded(record, root, overlay)
            for root, overlay, records in self._evidence_parts(backend, folder, mode, f"d{head_size}")
            for record in records
        )

    def head_sizes(self, backend: Backend, folder: str, mode: str) -> tuple[int, ...]:
        """Return the head sizes that a device folder and mode have sound evidence for, ascending."""
        parts = {part for _, _, found in self._evidence_parts(backend, folder, mode, shards.PARTS) for part in found}
        return tuple(sorted(int(part[1:]) for part in parts if part != FAULTS))

    def evidence_faults(self, backend: Backend, folder: str, mode: str) -> tuple[Fault, ...]:
        """Return the traces of one device folder and mode that are no evidence."""
        return tuple(
            Fault(root / record["file"], record["problem"])
            for root, _, records in self._evidence_parts(backend, folder, mode, FAULTS)
            for record in records
        )

    def tuned_files(self, backend: Backend, device: str) -> Iterator[tuple[Path, bool]]:
        """Yield (path, whether it is the overlay's) of the files that a device's tuned entries may lie in."""
        overlay = self._overlay("tuned")
        if overlay is not None:
            yield overlay / file_name(device), True
        yield backend.tuned_dir / file_name(device), False

    def tuned_part(self, backend: Backend, path: Path, overlay: bool, part: str) -> Any:
        """Return one part of a tuned file: a shape (`tuned.part_of`), FAULTS, or the list of all (shards.PARTS)."""
        if not overlay and self._ships(backend):
            parts = self._manifest["tuned"].get(backend.name, {}).get(path.stem, [])
            if part == shards.PARTS:
                return parts
            if part not in parts:
                return None
            payload = self._shipped_part("tuned", f"{backend.name}/{path.stem}", part)
            if payload is not None:
                return payload
        if os.path.isfile(path):  # a Path raises where its folder may not be entered
            return self._cache.part("tuned", path.stem, part, [path], lambda: _builders().tuned(path))
        if part == FAULTS and os.path.exists(path):  # a folder or a pipe serves nobody and is no source of a shard
            return _builders().tuned(path)[FAULTS]
        return None

    def expectations(self) -> tuple[Touching, ...]:
        """Return the recorded exceptions of kvreg's own tests that name variants."""
        return own.touching(self._shipped, self._cache, self._exceptions)

    def _devices_of(self, backend: Backend) -> list[Device]:
        payload = self._shipped_part("devices", backend.name, ALL)
        try:
            if payload is None:
                payload = self._cache.part(
                    "devices", backend.name, ALL, [backend.device_file], lambda: _builders().devices(backend)
                )
            return [Device.from_json(record) for record in payload or ()]
        except Exception as error:
            if backend.name in registry.BUILT_IN:
                raise
            # A third party's broken file must not take the built-in devices away.
            notices.warn(f"plug-in {backend.name}: devices failed: {type(error).__name__}: {error}")
            return []

    def _evidence_roots(self, backend: Backend) -> Iterator[Path]:
        overlay = self._overlay("evidence")
        if overlay is not None:
            yield overlay
        yield backend.evidence_dir

    def _evidence_parts(
        self, backend: Backend, folder: str, mode: str, part: str
    ) -> Iterator[tuple[Path, bool, list[Any]]]:
        """Yield (evidence root, whether it is the overlay, the part's records)."""
        for root in self._evidence_roots(backend):
            overlay = root != backend.evidence_dir
            if not overlay and self._ships(backend):
                parts = self._manifest["evidence"].get(backend.name, {}).get(folder, {}).get(mode, [])
                name = f"{backend.name}/{folder}/{mode}"
                if part == shards.PARTS:
                    yield root, overlay, parts
                    continue
                records = self._shipped_part("evidence", name, part) if part in parts else []
                if records is not None:
                    yield root, overlay, records
                    continue
            sources = evidence_files(root / folder / mode)
            records = self._cache.part(
                "evidence",
                f"{folder}-{mode}",
                part,
                sources,
                lambda found=sources, root=root: _builders().evidence(traces_among(found), root),  # type: ignore[misc]
            )
            yield root, overlay, records or []

    def _overlay(self, kind: str) -> Path | None:
        if self.home is None:
            return None
        if kind not in self._looked_at:
            why = unreadable(self.home / kind)
            if why is not None:
                notices.warn(why)
            self._looked_at[kind] = why is None
        return self.home / kind if self._looked_at[kind] else None

    def _package(self, name: str) -> list[str]:
        if name not in self._packages:
            self._packages[name] = package_files(name)
        return self._packages[name]

    @cached_property
    def _packages(self) -> dict[str, list[str]]:
        return {}

    @property
    def shipped_digests(self) -> Mapping[str, Mapping[str, str]]:
        """Backend -> source -> sha256, as they were when the wheel was built; empty without a wheel."""
        digests: Mapping[str, Mapping[str, str]] = self._manifest["sha256"]
        return digests

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        """Which shards the wheel holds; without one nothing is shipped."""
        nothing: dict[str, Any] = {"backends": [], "evidence": {}, "tuned": {}, "sha256": {}}
        if self._shipped is None:
            return nothing
        payload = shards.read(self._shipped / f"{MANIFEST}.json", MANIFEST, MANIFEST, None)
        return payload if isinstance(payload, dict) and payload.keys() >= nothing.keys() else nothing

    def _ships(self, backend: Backend) -> bool:
        return backend.name in self._manifest["backends"]

    def _shipped_part(self, kind: str, name: str, part: str) -> Any:
        if self._shipped is None or name.partition("/")[0] not in self._manifest["backends"]:
            return None
        return shards.read(self._shipped / kind / name / f"{part}.json", kind, part, None)


@cache
def _opened(home: Path) -> Index:
    return Index(registry.backends(), home, exceptions=own.path())


def _recorded(record: Mapping[str, Any], root: Path, overlay: bool) -> Recorded:
    fields = {name: value for name, value in record.items() if name not in ("ended", "file")}
    fields |= {
        "op": Op(record["op"]),
        "layouts": tuple(record["layouts"]),
        "features": tuple(record["features"]),
        "timings": tuple(Timing(**each) for each in record["timings"]),
        "refusals": tuple(Refusal(**each) for each in record["refusals"]),
    }
    return Recorded(Evidence(**fields), record["ended"], root / record["file"], overlay)


def _builders() -> Any:
    # YAML and pydantic cost 100 ms: only a rebuild pays for them.
    from kvreg.core import builders

    return builders
