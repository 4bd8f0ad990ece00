"""A GitHub workflow or a Buildkite pipeline, as far as kvreg's own use of them goes: what in it would fail or leak.

Not their whole grammar, which `check-jsonschema --builtin-schema vendor.github-workflows` (or `vendor.buildkite`) has.
This knows what no schema does: which runner labels and queues there are, which files and jobs a step names, that
nothing reads a secret or runs an action that can change under its name, and that no job may run for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvreg.ci.matrix.jobs import HOSTED, SELF_HOSTED, Finding
from kvreg.ci.matrix.runners import Fleet
from kvreg.core.errors import BadFile, wrong
from kvreg.core.near import suggestion

_PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
_SECRET = re.compile(r"\bsecrets\b|buildkite-agent secret|(?:TOKEN|SECRET|PASSWORD|API_?KEY)\b")
_SCRIPT = re.compile(r"(?<![\w./-])ci/[a-z]+(?![\w./-])")
_FROM_MATRIX = re.compile(r"\$\{\{\s*matrix\.runner\s*\}\}")
_EXPRESSION = re.compile(r"\$\{\{")

_WORKFLOW = ("name", "on", "permissions", "concurrency", "env", "defaults", "jobs")
_JOB = ("name", "needs", "if", "runs-on", "timeout-minutes", "permissions", "outputs", "strategy", "env", "steps")
_STEP = ("name", "id", "if", "uses", "with", "run", "env", "shell", "working-directory", "timeout-minutes")
_PIPELINE = ("steps", "env", "agents")
_COMMAND = (
    "label",
    "key",
    "command",
    "commands",
    "agents",
    "env",
    "depends_on",
    "timeout_in_minutes",
    "artifact_paths",
    "retry",
    "if",
)


def check(path: Path, fleet: Fleet) -> list[Finding]:
    """Return what is wrong with a workflow or pipeline; raises BadFile for what is neither."""
    from kvreg.core.yaml_files import load

    try:
        return _check(load(path), path, fleet)
    except RecursionError:
        # YAML lets a list hold itself.
        found, remedy = "one that holds itself, or is too deep", "write it out without aliases"
        raise BadFile(wrong(str(path), required="a finite document", found=found, remedy=remedy)) from None


def _check(loaded: object, path: Path, fleet: Fleet) -> list[Finding]:
    if isinstance(loaded, Mapping) and "jobs" in loaded:
        # YAML 1.1 reads the key `on` as true.
        document = {("on" if key is True else key): value for key, value in loaded.items()}
        found = _workflow(document, fleet)
    elif isinstance(loaded, Mapping) and isinstance(loaded.get("steps"), list):
        found = _pipeline(loaded, fleet)
    else:
        shape = "jobs (a GitHub workflow) or a list of steps (a Buildkite pipeline)"
        raise BadFile(wrong(str(path), required=shape, found="neither", remedy="name such a file"))
    return [*found, *_secrets(loaded), *_scripts(loaded, fleet.root)]


def _workflow(document: Mapping[Any, Any], fleet: Fleet) -> Iterator[Finding]:
    yield from _unknown("workflow", document, _WORKFLOW)
    if "on" not in document:
        yield Finding("no_trigger", "workflow", "required `on`, found none: it never runs")
    yield from _permissions("workflow", document.get("permissions"))
    jobs = document["jobs"]
    if not isinstance(jobs, Mapping) or not all(isinstance(job, Mapping) for job in jobs.values()):
        yield Finding("bad_shape", "jobs", "required a mapping of mappings; correct it")
        return
    for name, job in jobs.items():
        yield from _unknown(name, job, _JOB)
        if "timeout-minutes" not in job:
            yield Finding("no_limit", name, "required timeout-minutes, found none: a hung job holds a card for hours")
        if "permissions" in job:
            yield from _permissions(name, job["permissions"])
        yield from _runs_on(name, job.get("runs-on"), fleet)
        yield from _needs(name, job.get("needs"), jobs)
        yield from _outputs(name, job)
        for number, step in enumerate(_listed(job.get("steps")), 1):
            yield from _step(f"{name}, step {number}", step)
        if not _listed(job.get("steps")):
            yield Finding("bad_shape", name, "required steps, found none")


def _unknown(subject: str, found: Mapping[Any, Any], known: Iterable[str]) -> Iterator[Finding]:
    for key in found:
        if key not in known:
            yield Finding("unknown_key", subject, f"key {key}: {suggestion(str(key), known)}")


def _permissions(subject: str, stated: object) -> Iterator[Finding]:
    if stated != {} and stated != {"contents": "read"}:
        text = f"required permissions of contents: read and no more, found {json.dumps(stated, default=str)}"
        yield Finding("permissions", subject, text)


def _runs_on(name: str, stated: object, fleet: Fleet) -> Iterator[Finding]:
    if isinstance(stated, str) and _FROM_MATRIX.fullmatch(stated):
        return
    labels = [stated] if isinstance(stated, str) else _listed(stated)
    if not labels:
        yield Finding("unknown_label", name, "required runs-on, found none")
    known = {*HOSTED} if SELF_HOSTED not in labels else {SELF_HOSTED, *(x for r in fleet.runners for x in r.labels)}
    for label in labels:
        if not isinstance(label, str) or label not in known:
            text = f"label {label}: required one that {fleet.file.name} or GitHub has; {suggestion(str(label), known)}"
            yield Finding("unknown_label", name, text)


def _needs(name: str, stated: object, jobs: Mapping[Any, Any]) -> Iterator[Finding]:
    for other in [stated] if isinstance(stated, str) else _listed(stated):
        if not isinstance(other, str) or other not in jobs or other == name:
            yield Finding("unknown_job", name, f"needs {other}: {suggestion(str(other), map(str, jobs))}")


def _outputs(name: str, job: Mapping[Any, Any]) -> Iterator[Finding]:
    ids = [step.get("id") for step in _listed(job.get("steps")) if isinstance(step, Mapping)]
    for key, value in _mapped(job.get("outputs")).items():
        for step in re.findall(r"steps\.([\w-]+)\.", str(value)):
            if step not in ids:
                yield Finding("unknown_step", name, f"output {key}: no step has the id {step}")


def _step(subject: str, step: object) -> Iterator[Finding]:
    if not isinstance(step, Mapping) or ("uses" in step) == ("run" in step):
        yield Finding("bad_shape", subject, "required a step with either `uses` or `run`; correct it")
        return
    yield from _unknown(subject, step, _STEP)
    if "uses" in step and not _PINNED.fullmatch(str(step["uses"])):
        text = f"uses {step['uses']}: required a commit of 40 hex digits: a tag can be moved"
        yield Finding("not_pinned", subject, text)
    if _EXPRESSION.search(str(step.get("run", ""))):
        # What an event holds (a branch's name) would be run as shell text.
        yield Finding("injection", subject, "run: required values through env, found ${{ }} in the shell text")


def _pipeline(document: Mapping[Any, Any], fleet: Fleet) -> Iterator[Finding]:
    yield from _unknown("pipeline", document, _PIPELINE)
    queues = {runner.queue for runner in fleet.runners}
    steps = [step for step in document["steps"] if step != "wait"]
    keys = [step.get("key") for step in steps if isinstance(step, Mapping)]
    for number, step in enumerate(steps, 1):
        if not isinstance(step, Mapping) or not ({"command", "commands"} & step.keys()):
            yield Finding("bad_shape", f"step {number}", "required a command step or `wait`; correct it")
            continue
        name = str(step.get("key") or step.get("label") or f"step {number}")
        yield from _unknown(name, step, _COMMAND)
        if "timeout_in_minutes" not in step:
            yield Finding(
                "no_limit", name, "required timeout_in_minutes, found none: a hung job holds a card for hours"
            )
        queue = {**_mapped(document.get("agents")), **_mapped(step.get("agents"))}.get("queue")
        if not isinstance(queue, str) or queue not in queues:
            text = f"queue {queue}: required one that {fleet.file.name} has; {suggestion(str(queue), queues)}"
            yield Finding("unknown_label", name, text)
        if step.get("key") is not None and keys.count(step["key"]) > 1:
            yield Finding("bad_shape", name, "required a key of its own, found it twice")
        depends = step.get("depends_on")
        for other in [depends] if isinstance(depends, str) else _listed(depends):
            if other not in keys:
                yield Finding("unknown_job", name, f"depends_on {other}: no step has that key")


def _secrets(document: object) -> Iterator[Finding]:
    for text in _texts(document):
        if found := _SECRET.search(text):
            said = f"required a pipeline that runs without secrets, found {found[0]} in {text.strip()[:60]!r}"
            yield Finding("secret", "text", said)


def _scripts(document: object, root: Path) -> Iterator[Finding]:
    named = {name for text in _texts(document) for name in _SCRIPT.findall(text)}
    for name in sorted(named):
        if not (root / name).exists():
            yield Finding("unknown_file", name, "required a file of the checkout, found none")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (*_texts(key), *_texts(each))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _mapped(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
