"""Which jobs a change needs, and for each other one why it does not.

A job needs a file that its tests, its platform's backend or the kernels of its variants import, directly or not, that
is one of its tests, or that lies in its backend's folder. What the runners' file says of a path goes before that; a
file of which nothing is known needs every job.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvreg.ci.matrix.imports import Imports
from kvreg.ci.matrix.jobs import Job, longest, within
from kvreg.ci.matrix.runners import Fleet
from kvreg.core.backends import Backend

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """One job, and why it is picked or left out."""

    job: Job
    picked: bool
    why: str


class Needs:
    """What each job of a fleet reads; the source is read once."""

    def __init__(self, jobs: Sequence[Job], fleet: Fleet, backends: Sequence[Backend]) -> None:
        imports = Imports(fleet.root, fleet.sources)
        reaches: dict[tuple[object, ...], frozenset[str]] = {}
        self._views: list[_View] = []
        for job in jobs:
            key = (job.platform, job.tests, job.modules, job.interprets, job.variants)
            if key not in reaches:
                reaches[key] = imports.reach(roots(job, backends, imports))
            self._views.append(_View(job, fleet, imports, reaches[key], _folders(job, backends, fleet)))

    def of(self, changed: Sequence[str]) -> list[Choice]:
        """Return a choice for each job; `changed` are paths relative to the checkout, with slashes."""
        return [_choice(view, changed) for view in self._views]


def _choice(view: _View, changed: Sequence[str]) -> Choice:
    needed = [reason for path in changed if (reason := view.needs(path)) is not None]
    if not needed:
        return Choice(view.job, False, _left_out(changed, view))
    return Choice(view.job, True, needed[0] + (f", and {len(needed) - 1} more" if needed[1:] else ""))


def roots(job: Job, backends: Iterable[Backend], imports: Imports) -> set[str]:
    """Return the modules that a job starts from: tests and what they share, backends, kernels, and modules by name."""
    found = set(job.modules)
    for backend in backends:
        own = backend.platform == job.platform
        if own:
            found.add(type(backend).__module__)
        for variant in backend.variants():
            if (own and str(variant.id) in job.variants) or backend.platform in job.interprets:
                found |= {root.partition(":")[0] for root in (variant.launcher, *variant.kernels)}
    for path in _test_files(job, imports):
        tree = ast.parse((imports.root / path).read_bytes(), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _test_files(job: Job, imports: Imports) -> Iterator[str]:
    """Yield the files of a job's tests and each conftest.py above them, relative to the checkout."""
    seen: set[str] = set()
    for test in job.tests:
        start = imports.root / test
        inside = sorted(start.rglob("*.py")) if start.is_dir() else [start]
        above = [parent / "conftest.py" for parent in start.parents if parent.is_relative_to(imports.root)]
        for path in (*inside, *above):
            name = path.relative_to(imports.root).as_posix()
            if path.is_file() and name not in seen:
                seen.add(name)
                yield name


def _folders(job: Job, backends: Iterable[Backend], fleet: Fleet) -> Mapping[str, str]:
    """Return the folder of each backend of the job's platform -> its name; others lie outside of the checkout."""
    found = {}
    for backend in backends:
        folder = backend.device_file.resolve().parent
        if backend.platform == job.platform and folder.is_relative_to(fleet.root):
            found[folder.relative_to(fleet.root).as_posix()] = backend.name
    return found


@dataclass(frozen=True, slots=True)
class _View:
    """What one job needs."""

    job: Job
    fleet: Fleet
    imports: Imports
    reach: frozenset[str]
    folders: Mapping[str, str]

    def needs(self, path: str) -> str | None:
        """Return why the job needs a path; None where it does not."""
        always, never = (longest(path, paths) for paths in (self.fleet.every_job, self.fleet.no_job))
        if always is not None and len(always) >= len(never or ""):
            return f"{path}: every job needs {always}"
        if never is not None:
            return None
        own = longest(path, self.folders)
        if own is not None:
            return f"{path}: in the folder of backend {self.folders[own]}"
        if self._is_test(path):
            return f"{path}: one of its tests, or shared by them" if self._is_own_test(path) else None
        module = self.imports.module_of(path)
        if module is not None:
            return f"{path}: its tests or kernels import {module}" if module in self.reach else None
        package = self._package(path)
        if package is not None:
            return f"{path}: beside {package}, which its tests or kernels import" if package in self.reach else None
        return f"{path}: nobody knows what reads it"

    def _is_test(self, path: str) -> bool:
        return within(path, {test.partition("/")[0] for test in self.job.tests})

    def _is_own_test(self, path: str) -> bool:
        if within(path, self.job.tests):
            return True
        folder, _, name = path.rpartition("/")
        return name == "conftest.py" and any(within(test, (folder,)) for test in self.job.tests)

    def _package(self, path: str) -> str | None:
        """Return the innermost package that a data file lies in."""
        folder = path.rpartition("/")[0]
        while folder:
            module = self.imports.module_of(f"{folder}/__init__.py")
            if module in self.imports.files:
                return module
            folder = folder.rpartition("/")[0]
        return None


def _left_out(changed: Sequence[str], view: _View) -> str:
    if not changed:
        return "nothing changed"
    if all(longest(path, view.fleet.no_job) is not None for path in changed):
        return f"no job reads {_list(changed)}"
    backend = ", ".join(view.folders.values()) or view.job.platform
    return f"neither its tests nor backend {backend} nor its kernels read {_list(changed)}"


def _list(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
