"""Jobs as CI systems read them: GitHub's strategy, a Buildkite pipeline, one JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from kvreg.ci.matrix.jobs import Finding, Job

SCRIPT = "ci/job"
"""What runs a job, in every CI system."""
LIMIT_MINUTES = 60


def github(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return what `strategy.matrix` takes: `include`, one object a job, null for what the machine has."""
    return {"include": [_included(job) for job in jobs]}


def buildkite(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return a pipeline for `buildkite-agent pipeline upload`: one command step a job."""
    return {"steps": [_step(job) for job in jobs]}


def document(jobs: Iterable[Job], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return everything, schema 1."""
    return {
        "schema": 1,
        "jobs": [asdict(job) for job in jobs],
        "findings": [asdict(each) for each in findings],
    }


def arguments(job: Job) -> str:
    """Return the words of a shell that give pytest a job's tests."""
    return shlex.join([*(("-m", job.marker) if job.marker else ()), *job.tests])


def command(job: Job) -> str:
    """Return the command line of a job, from the root of the checkout."""
    words = [SCRIPT, "--device", job.device]
    for name in ("python", "torch", "triton"):
        if (version := getattr(job, name)) is not None:
            words += [f"--{name}", version]
    return f"{shlex.join(words)} -- {arguments(job)}"


def _included(job: Job) -> dict[str, Any]:
    return {
        "platform": job.platform,
        "device": job.device,
        "runner": list(job.labels),
        "python": job.python,
        "torch": job.torch,
        "triton": job.triton,
        "tests": arguments(job),
        "variants": list(job.variants),
        "expectations": list(job.expectations),
    }


def _step(job: Job) -> dict[str, Any]:
    return {
        "label": job.id,
        "key": job.id,
        "command": command(job),
        "agents": {"queue": job.queue},
        "artifact_paths": ["report-*.json"],
        "timeout_in_minutes": LIMIT_MINUTES,
        # An agent that is lost says nothing of the change; a failed test does.
        "retry": {"automatic": [{"exit_status": -1, "limit": 1}]},
    }
