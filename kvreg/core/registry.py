"""The backends: four built in and known by name, others through the entry-point group `kvreg.backends`.

A plug-in that cannot be used is one warning line and an entry of `failures()`, never an error: a broken package of a
third party must not take the built-in devices away.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kvreg.core import environment, notices
from kvreg.core.backends import Backend, Detected
from kvreg.core.shards import replace_file

GROUP = "kvreg.backends"
BUILT_IN = {
    "cuda": "kvreg_cuda.backend:BACKEND",
    "rocm": "kvreg_rocm.backend:BACKEND",
    "xpu": "kvreg_xpu.backend:BACKEND",
    "cpu": "kvreg_cpu.backend:BACKEND",
}
BUILT_IN_FAMILIES = ("torch", "triton")
_SCAN_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A plug-in that cannot be used, and why."""

    name: str
    target: str
    problem: str


def backends() -> tuple[Backend, ...]:
    """Return the built-in backends and every plug-in that loads; loading imports neither torch nor Triton."""
    return _load()[0]


def failures() -> tuple[Failure, ...]:
    """Return the plug-ins that did not load."""
    return _load()[1]


def families() -> tuple[str, ...]:
    """Return the words that KVREG_BACKEND may hold: the families of all variants, sorted."""
    found = set(BUILT_IN_FAMILIES)
    for backend in backends():
        with _guarded(backend, "variants"):
            found.update(variant.family for variant in backend.variants())
    return tuple(sorted(found))


def detect() -> tuple[Detected, ...]:
    """Return the cards of this machine, the host's processor left out; a backend that cannot look finds none."""
    cards: list[Detected] = []
    for backend in backends():
        if backend.platform != "cpu":
            with _guarded(backend, "detection"):
                cards.extend(backend.detect())
    return tuple(cards)


def entry_points() -> tuple[tuple[str, str], ...]:
    """Return (name, "module:attribute") of the installed plug-ins.

    Asking importlib.metadata costs 50 ms, so the answer is kept under KVREG_HOME until a folder of sys.path changes
    (installing, upgrading and removing a package all do that).
    """
    state = [sys.version.split()[0], *(_stamp(entry) for entry in sys.path)]
    label = f"{zlib.crc32(chr(10).join(sys.path).encode()):08x}"
    path = environment.home() / "cache" / f"plugins-{label}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema"] == _SCAN_SCHEMA and kept["state"] == state:
            return tuple((str(name), str(target)) for name, target in kept["plugins"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never scanned here, or by another version
    plugins = _scan()
    # A home that cannot be written costs the scan at every start; `kvreg doctor` says so.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"schema": _SCAN_SCHEMA, "state": state, "plugins": plugins}
        replace_file(path, json.dumps(kept).encode(), durable=False)
    return plugins


def _scan() -> tuple[tuple[str, str], ...]:
    from importlib import metadata  # 20 ms, spared when the kept answer holds

    # One distribution can be found twice through sys.path; importlib keeps the first, and so do we.
    return tuple(sorted({point.name: point.value for point in metadata.entry_points(group=GROUP)}.items()))


def _stamp(entry: str) -> str:
    try:
        return f"{entry}:{os.stat(entry or os.curdir).st_mtime_ns}"
    except OSError:
        return f"{entry}:-"


@cache
def _load() -> tuple[tuple[Backend, ...], tuple[Failure, ...]]:
    loaded: dict[str, Backend] = {}
    for name, target in BUILT_IN.items():
        loaded[name] = _import(target)
    failed: list[Failure] = []
    for name, target in entry_points():
        # A plug-in may print while it is imported; standard output belongs to the command's own document.
        try:
            with contextlib.redirect_stdout(sys.stderr):
                backend = _import(target)
            problem = _unfit(backend, loaded)
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {notices.one_line(str(error))}"
        if problem:
            failed.append(Failure(name, target, problem))
            notices.warn(f"plug-in {name} ({target}) is left out: {problem}")
        else:
            loaded[backend.name] = backend
    return tuple(loaded.values()), tuple(failed)


def _import(target: str) -> Backend:
    module, _, attribute = target.partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute or "BACKEND")
    return backend


def _unfit(backend: object, loaded: Iterable[str]) -> str | None:
    # A runtime_checkable protocol with data members would do, but not say what is missing.
    missing = [name for name in _members() if not hasattr(backend, name)]
    if missing:
        return f"required a kvreg.core.backends.Backend, found no {', '.join(missing)} in it"
    assert isinstance(backend, Backend)
    if backend.name in loaded:
        return f"required a name of its own, found {backend.name}, which is taken"
    return None


def _members() -> Sequence[str]:
    return sorted({*Backend.__annotations__, *(name for name in vars(Backend) if not name.startswith("_"))})


@contextlib.contextmanager
def _guarded(backend: Backend, what: str) -> Iterator[None]:
    """Turn a plug-in's fault into a warning; a built-in backend's fault is ours and stays an error."""
    try:
        yield
    except Exception as error:
        if backend.name in BUILT_IN:
            raise
        notices.warn(f"plug-in {backend.name}: {what} failed: {type(error).__name__}: {error}")
