"""The machines that take CI jobs, as typed values: read from a file such as ci/runners.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvreg.core import schema_faults
from kvreg.core.errors import BadFile, wrong
from kvreg.core.near import suggestion

T = TypeVar("T")

BELOW = Path("ci", "runners.yaml")
"""Where a checkout has its runners."""
CHECKOUT = Path(__file__).resolve().parents[3] / BELOW
"""kvreg's own, where it runs from its checkout."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Versions that a job installs; None is what the machine has."""

    name: str
    python: str | None = None
    torch: str | None = None
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that a job runs."""

    name: str
    tests: tuple[str, ...]
    """Files or folders, relative to the checkout."""
    marker: str | None = None
    modules: tuple[str, ...] = ()
    """Loaded by name, so that no import shows them."""
    interprets: tuple[str, ...] = ()
    """Platforms whose kernels its tests run in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Runner:
    """One kind of machine."""

    name: str
    device: str
    """As written; `jobs` resolves it."""
    labels: tuple[str, ...]
    queue: str
    suite: Suite
    stacks: tuple[Stack, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of a file."""

    file: Path
    runners: tuple[Runner, ...]
    sources: tuple[str, ...] = (".",)
    every_job: tuple[str, ...] = ()
    """Paths whose change needs every job."""
    no_job: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The checkout: the folder above the one that the file lies in."""
        return self.file.resolve().parent.parent


def read(path: Path) -> Fleet:
    """Return the runners of a file; raises BadFile, naming the place, for anything that the schema does not allow."""
    from pydantic import ValidationError

    from kvreg.ci.matrix.schema import RunnerFile, keys_at
    from kvreg.core.yaml_files import load

    try:
        record = RunnerFile.model_validate(load(path))
    except ValidationError as error:
        fault = schema_faults.first(error, keys_at)
        remedy = fault.remedy or "correct the file"
        message = wrong(f"{path}: {fault.where()}", required=fault.required, found=fault.found, remedy=remedy)
        raise BadFile(message) from None
    stacks = {name: Stack(name, each.python, each.torch, each.triton) for name, each in record.stacks.items()}
    suites = {
        name: Suite(name, tuple(each.tests), each.marker, tuple(each.modules), tuple(each.interprets))
        for name, each in record.suites.items()
    }
    runners: list[Runner] = []
    for each in record.runners:
        if each.name in [one.name for one in runners]:
            found = f"{each.name} twice"
            raise BadFile(wrong(f"{path}: runners", required="a name each", found=found, remedy="rename one"))
        suite = _named(path, each.name, "suites", each.suite, suites)
        own = tuple(_named(path, each.name, "stacks", name, stacks) for name in each.stacks)
        runners.append(Runner(each.name, each.device, tuple(each.labels), each.queue, suite, own))
    return Fleet(
        path, tuple(runners), tuple(record.sources), tuple(record.paths.every_job), tuple(record.paths.no_job)
    )


def required(path: Path | None) -> Path:
    """Return the file to read: the one given, else that of the checkout one stands in, else the one beside kvreg.

    Raises BadFile where there is none.
    """
    if path is not None:
        return path
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    found = next((file for file in (here / BELOW, root / BELOW, CHECKOUT) if file.is_file()), None)
    if found is None:
        places = " or ".join(dict.fromkeys(map(str, (here / BELOW, root / BELOW))))
        required = f"{BELOW} of a checkout"
        raise BadFile(wrong("runners", required=required, found=f"no {places}", remedy="name a file: --runners"))
    return found


def _named(path: Path, runner: str, kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        message = wrong(f"{path}: {runner}", required=f"a word of {kind}", found=name, remedy=suggestion(name, known))
        raise BadFile(message)
    return known[name]
