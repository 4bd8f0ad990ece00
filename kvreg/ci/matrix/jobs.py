"""From runners, the registry and the expectations to jobs, and what is wrong with them as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvreg.ci.matrix.runners import Fleet, Runner, Stack
from kvreg.core import resolve
from kvreg.core.backends import Backend
from kvreg.core.devices import Device
from kvreg.core.errors import BadFile, UnknownDevice
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.matching import EntryIndex
from kvreg.core.expectations.predicates import Where
from kvreg.core.near import nearest
from kvreg.core.variants import Variant

HOSTED = (
    "ubuntu-latest",
    "ubuntu-24.04",
    "ubuntu-22.04",
    "ubuntu-24.04-arm",
    "ubuntu-22.04-arm",
    "macos-latest",
    "macos-15",
    "macos-14",
    "windows-latest",
    "windows-2025",
    "windows-2022",
)
"""Labels of GitHub's own runners (docs.github.com, "Choosing the runner for a job"). A job with any other waits for a
runner of one's own that bears it, and for a day before it fails where there is none."""
SELF_HOSTED = "self-hosted"

MOST_JOBS = 256
"""Of one GitHub matrix (docs.github.com, "Usage limits")."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a suite on a runner, with one set of versions."""

    id: str
    runner: str
    platform: str
    device: str
    arch: str
    labels: tuple[str, ...]
    queue: str
    python: str | None
    """None, here and below: what the machine has."""
    torch: str | None
    triton: str | None
    suite: str
    tests: tuple[str, ...]
    marker: str | None
    modules: tuple[str, ...]
    interprets: tuple[str, ...]
    variants: tuple[str, ...]
    """Of the device's platform, those that can run on it."""
    expectations: tuple[str, ...]
    """Ids of the entries that can hold there."""

    @property
    def where(self) -> Where:
        """The job as a place that predicates speak of."""
        return Where(self.platform, self.arch, self.device, triton=self.triton, torch=self.torch)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with the matrix: variant_without_runner, all_excepted, no_tests, unknown_label, too_many_jobs."""

    code: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """All jobs and findings."""

    jobs: tuple[Job, ...]
    findings: tuple[Finding, ...]


def matrix(
    fleet: Fleet, backends: Sequence[Backend], known: Known, entries: Sequence[Expectation], ids: Sequence[str]
) -> Matrix:
    """Return the jobs of a fleet. `ids`: collected ids of the tests; without any, nothing is said of them.

    Raises BadFile for a runner whose device nobody knows.
    """
    placed = [(runner, _device(fleet, runner, known.devices)) for runner in fleet.runners]
    offered = [(backend.platform, variant) for backend in backends for variant in backend.variants()]
    jobs = tuple(
        _job(runner, stack, device, offered, known, entries) for runner, device in placed for stack in runner.stacks
    )
    findings = [
        *_labels(fleet.runners),
        *_unserved(offered, [device for _, device in placed]),
        *(_untested(jobs, known, entries, ids) if ids else ()),
    ]
    if len(jobs) > MOST_JOBS:
        findings.append(Finding("too_many_jobs", fleet.file.name, f"required at most {MOST_JOBS}, found {len(jobs)}"))
    return Matrix(jobs, tuple(findings))


def of(jobs: Iterable[Job], runners: Sequence[str]) -> list[Job]:
    """Return the jobs of the named runners, all of them when none is named."""
    return [job for job in jobs if not runners or job.runner in runners]


def _device(fleet: Fleet, runner: Runner, devices: Sequence[Device]) -> Device:
    try:
        return resolve.resolve_among(runner.device, devices).device
    except UnknownDevice as error:
        raise BadFile(f"{fleet.file}: {runner.name}: {error.message}", candidates=error.candidates) from None


def _job(
    runner: Runner,
    stack: Stack,
    device: Device,
    offered: Sequence[tuple[str, Variant]],
    known: Known,
    entries: Sequence[Expectation],
) -> Job:
    place = Where(device.platform, device.arch, device.key, triton=stack.triton, torch=stack.torch)
    return Job(
        id=runner.name if len(runner.stacks) == 1 else f"{runner.name}-{stack.name}",
        runner=runner.name,
        platform=device.platform,
        device=device.key,
        arch=device.arch,
        labels=runner.labels,
        queue=runner.queue,
        python=stack.python,
        torch=stack.torch,
        triton=stack.triton,
        suite=runner.suite.name,
        tests=runner.suite.tests,
        marker=runner.suite.marker,
        modules=runner.suite.modules,
        interprets=runner.suite.interprets,
        variants=tuple(
            str(variant.id) for platform, variant in offered if platform == device.platform and _runs(variant, device)
        ),
        expectations=tuple(entry.id for entry in entries if known.may_hold(entry.when, place)),
    )


def _runs(variant: Variant, device: Device) -> bool:
    limits = variant.constraints
    least, found = limits.min_capability, device.capability
    return (not limits.archs or device.arch in limits.archs) and not (least and found and found < least)


def _labels(runners: Iterable[Runner]) -> Iterator[Finding]:
    for runner in runners:
        if SELF_HOSTED in runner.labels:
            continue
        for label in runner.labels:
            if label not in HOSTED:
                near = nearest(label, (*HOSTED, SELF_HOSTED))
                remedy = f"did you mean {near[0]}?" if near else f"add {SELF_HOSTED} where it is a machine of yours"
                text = f"label {label}: required one of GitHub's, or {SELF_HOSTED} beside it; {remedy}"
                yield Finding("unknown_label", runner.name, text)


def _unserved(offered: Iterable[tuple[str, Variant]], devices: Sequence[Device]) -> Iterator[Finding]:
    for platform, variant in offered:
        if not any(device.platform == platform and _runs(variant, device) for device in devices):
            archs = variant.constraints.archs
            wanted = f"a runner of {platform}" + (f" with {' or '.join(archs)}" if archs else "")
            yield Finding("variant_without_runner", str(variant.id), f"required {wanted}, found none; add one")


def _untested(
    jobs: Iterable[Job], known: Known, entries: Sequence[Expectation], ids: Sequence[str]
) -> Iterator[Finding]:
    for job in jobs:
        own = ids_of(job, ids)
        if not own:
            found = ", ".join(job.tests)
            yield Finding("no_tests", job.id, f"required a collected test, found none in {found}; correct the suite")
            continue
        there = EntryIndex([entry for entry in entries if known.may_hold(entry.when, job.where)])
        if all(there.of(each) for each in own):
            text = f"each of its {len(own)} tests has an expectation there: a green run proves nothing; mend one"
            yield Finding("all_excepted", job.id, text)


def ids_of(job: Job, ids: Iterable[str]) -> list[str]:
    """Return the collected ids that lie in the files and folders of a job's tests."""
    return [each for each in ids if within(each.partition("::")[0], job.tests)]


def within(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of these, or lies below one."""
    return longest(path, folders) is not None


def longest(path: str, folders: Iterable[str]) -> str | None:
    """Return the longest of these paths that a path is or lies below."""
    found = [each for each in folders if path == each or each == "." or path.startswith(f"{each.rstrip('/')}/")]
    return max(found, key=len, default=None)
