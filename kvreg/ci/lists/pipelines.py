"""Reads what CI jobs leave out of their pytest calls: Buildkite and GitHub YAML, and shell scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import join
from typing import Any

from kvreg.ci.lists import shell
from kvreg.ci.lists.exclusions import Exclusion, How, Place, comment_above, reason_and_issue
from kvreg.ci.lists.guesses import Guesser
from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read_text
from kvreg.core.expectations.lined_yaml import LinedList, parse

_COMMANDS = ("commands", "command", "run")
_TOLERATED = "a failure is swallowed by `|| true`"
SOFT = "soft_fail"


@dataclass(frozen=True, slots=True)
class _Job:
    """One job: its label, other words that say where it runs, its commands with their lines."""

    label: str
    hints: tuple[str, ...]
    folder: str
    commands: tuple[tuple[str, int], ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Pipelines:
    """What the jobs of some files leave out, and the ids that some job names to run."""

    exclusions: tuple[Exclusion, ...]
    named: frozenset[tuple[str, str]]
    """(id, place) of what a job names to run."""


def read_pipelines(files: list[Path], guesser: Guesser, root: Path | None = None) -> Pipelines:
    """Return what the jobs of YAML files and scripts leave out; files are named by their path below `root`.

    Raises BadFile for a file that cannot be read. YAML without jobs has none.
    """
    exclusions: list[Exclusion] = []
    named: set[tuple[str, str]] = set()
    for path in files:
        shown = path.relative_to(root) if root is not None else path
        text = read_text(path)
        jobs = list(_script(text, shown) if path.suffix == ".sh" else _jobs(parse(text, shown)))
        lines = text.split("\n")
        for job in jobs:
            place = guesser.place(job.label, job.hints)
            for command, line in job.commands:
                for call in shell.calls(command):
                    found, ran = _left_out(call, job, place, shown, line, lines)
                    exclusions += found
                    named |= {(node_id, str(place.when)) for node_id in ran}
    return Pipelines(tuple(exclusions), frozenset(named))


def pipeline_files(source: Path) -> list[Path]:
    """Return the YAML files and scripts of a folder, or the file itself; raises BadFile where there are none."""
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix in (".yml", ".yaml", ".sh") and path.is_file())
    if not found:
        raise BadFile(f"{source}: required pipelines (.yml, .yaml, .sh), found none; check the path")
    return found


def _left_out(
    call: shell.Call, job: _Job, place: Place, file: Path, line: int, lines: list[str]
) -> tuple[list[Exclusion], set[str]]:
    """Return what one call leaves out, and the ids that it names."""
    folder = call.folder or job.folder
    paths = tuple(join(folder, each) for each in call.paths)
    remarks = [job.remark] if job.remark else []
    if call.swallowed:
        remarks.append(_TOLERATED)
    wanted = [(How.DESELECT, each, each) for each in call.deselected]
    wanted += [(How.IGNORE, each, join(folder, each)) for each in call.ignored]
    wanted += [(How.KEYWORD, each, each) for each in shell.negated_words(call.keyword)]
    found: list[Exclusion] = []
    for how, written, text in wanted:
        at = _line_of(written, line, lines)
        reason, issue = reason_and_issue(comment_above(lines, at) or comment_above(lines, line))
        found.append(
            Exclusion(how, text, file, at, place, reason=reason, issue=issue, paths=paths, remark="; ".join(remarks))
        )
    return found, {path for path in paths if "::" in path}


def _line_of(text: str, start: int, lines: list[str]) -> int:
    """Return the line of a text at or below that of its command; the command's own where quoting hides it."""
    for number in range(start, len(lines) + 1):
        if text in lines[number - 1]:
            return number
    return start


def _script(text: str, file: Path) -> Iterator[_Job]:
    yield _Job(file.name, (), "", ((text, 1),))


def _jobs(document: Any) -> Iterator[_Job]:
    if not isinstance(document, Mapping):
        return
    jobs = document.get("jobs")
    if isinstance(jobs, Mapping):
        for name, job in jobs.items():
            if isinstance(job, Mapping):
                yield from _github(str(name), job)
    yield from _buildkite(document.get("steps"), _text(document.get("group")))


def _github(name: str, job: Mapping[str, Any]) -> Iterator[_Job]:
    label = _text(job.get("name")) or name
    runner = job.get("runs-on")
    hints = tuple(map(str, runner)) if isinstance(runner, list) else (_text(runner),)
    steps = job.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, Mapping):
            folder = _below_root(_text(step.get("working-directory")))
            soft = "continue-on-error" if _text(step.get("continue-on-error")) == "true" else ""
            yield _Job(label, tuple(filter(None, hints)), folder, tuple(_commands(step)), soft)


def _buildkite(steps: Any, group: str) -> Iterator[_Job]:
    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, Mapping):
            continue
        label = _text(step.get("label")) or _text(step.get("group")) or group
        yield from _buildkite(step.get("steps"), label)
        own = _Job(
            label,
            _hints(step),
            _below_root(_text(step.get("working_dir"))),
            tuple(_commands(step)),
            SOFT if _text(step.get("soft_fail")) not in ("", "false") else "",
        )
        yield own
        mirrors = step.get("mirror")
        for mirror in mirrors.values() if isinstance(mirrors, Mapping) else ():
            if isinstance(mirror, Mapping):
                # A twin without commands of its own runs those of its step.
                commands = tuple(_commands(mirror)) or own.commands
                folder = _below_root(_text(mirror.get("working_dir"))) or own.folder
                yield replace(
                    own,
                    label=_text(mirror.get("label")) or label,
                    hints=_hints(mirror),
                    folder=folder,
                    commands=commands,
                )


def _hints(step: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pool or device that a step asks for; the word of a vendor's whole pool says less than the label."""
    found = [_text(step.get(key)) for key in ("device", "agent_pool")]
    return tuple(text for text in found if text)


def _commands(step: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    lines: Mapping[str, int] = getattr(step, "lines", {})
    for key in _COMMANDS:
        value = step.get(key)
        if isinstance(value, str):
            yield value, lines.get(key, 1)
        elif isinstance(value, LinedList):
            for text, line in zip(value, value.lines, strict=True):
                if isinstance(text, str):
                    yield text, line


def _below_root(folder: str) -> str:
    """Return a working directory relative to the project: an absolute one without the name of its mount."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return "/".join(parts[1:] if folder.startswith("/") else parts)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
