"""`kvreg ci`: which tests run on which machine, which of these jobs a change needs, and what is wrong with either."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvreg.cli import render
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Group
from kvreg.core.errors import UsageError, wrong
from kvreg.core.near import completed

if TYPE_CHECKING:
    from kvreg.ci.matrix.changes import Choice
    from kvreg.ci.matrix.jobs import Finding, Job, Matrix
    from kvreg.ci.matrix.runners import Fleet

FINDING = 4
FORMATS = ("table", "github", "buildkite", "json")

_PATH = NamedPath(path_type=Path)
_WORD = NamedPath(path_type=str)
_RUNNERS = click.option("--runners", type=_PATH, help="A file of runners. Default: ci/runners.yaml of the checkout.")
_ONLY = click.option("--only", "only", multiple=True, metavar="RUNNER", help="Only this runner; may be repeated.")
_FORMAT = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="How jobs are written."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")


@click.group(cls=Group)
def ci() -> None:
    """Say which tests run on which machine, and which of these jobs a change needs."""


@ci.command()
@_RUNNERS
@_ONLY
@click.option("--ids", type=_PATH, help="Collected ids. Default: test-ids.txt beside the runners.")
@click.option("--file", "listed", type=_PATH, help="A list of expectations. Default: expectations.yaml beside them.")
@_FORMAT
@_JSON
def matrix(
    runners: Path | None, only: tuple[str, ...], ids: Path | None, listed: Path | None, form: str, as_json: bool
) -> int:
    """Write every job: a runner, versions, tests, the variants that run there and the expectations that hold.

    Ends with 4 when a variant has no runner, a runner has no test or an exception for each of them, or a label is
    nobody's; findings are part of the table and of the JSON document, and go to stderr beside other formats.
    """
    _, made = _made(runners, only, ids, listed)
    _write(made.jobs, made.findings, "json" if as_json else form)
    return FINDING if made.findings else 0


@ci.command()
@click.option(
    "--changed", "first", type=_WORD, multiple=True, metavar="FILE...", help="Changed files, from the checkout's root."
)
@click.argument("others", nargs=-1, type=_WORD, metavar="[FILE]...")
@_RUNNERS
@_ONLY
@_FORMAT
@_JSON
def select(
    first: tuple[str, ...],
    others: tuple[str, ...],
    runners: Path | None,
    only: tuple[str, ...],
    form: str,
    as_json: bool,
) -> None:
    """Pick the jobs that a change needs, and say of each other one why it does not; `-` reads FILEs from stdin."""
    from kvreg.ci.matrix.changes import Needs
    from kvreg.core import registry

    if not (first or others):
        # A script whose list came out empty by mistake must not skip every job.
        raise click.UsageError("missing option '--changed'; `--changed -` reads a list, which may be empty")
    fleet, made = _made(runners, only, None, None)
    changed = _changed((*first, *others))
    choices = Needs(made.jobs, fleet, registry.backends()).of(changed)
    if as_json or form == "json":
        shown = [{"id": each.job.id, "picked": each.picked, "why": each.why} for each in choices]
        render.document({"schema": 1, "changed": list(changed), "jobs": shown})
    elif form == "table":
        _choices(choices)
    else:
        _write([each.job for each in choices if each.picked], (), form)


@ci.command()
@click.argument("files", nargs=-1, required=True, type=_PATH, metavar="FILE...")
@_RUNNERS
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(files: tuple[Path, ...], runners: Path | None, as_json: bool) -> int:
    """Check GitHub workflows and Buildkite pipelines: labels nobody has, secrets, what is not pinned or limited."""
    from kvreg.ci.matrix import pipelines
    from kvreg.ci.matrix.runners import read, required

    fleet = read(required(runners))
    found = [(path, each) for path in files for each in pipelines.check(path, fleet)]
    if as_json:
        shown = [{"file": str(path), "code": e.code, "subject": e.subject, "text": e.text} for path, e in found]
        render.document({"schema": 1, "checked": len(files), "findings": shown})
    else:
        for path, each in found:
            render.line(f"{each.code}: {path}: {each.subject}: {each.text}")
        render.line(f"{render.counted(len(files), 'file')}, {render.counted(len(found), 'finding')}")
    return FINDING if found else 0


def _made(runners: Path | None, only: Sequence[str], ids: Path | None, listed: Path | None) -> tuple[Fleet, Matrix]:
    from kvreg.ci.matrix.jobs import Matrix, matrix, of
    from kvreg.ci.matrix.runners import read, required
    from kvreg.core import registry
    from kvreg.core.expectations import collected, files, own
    from kvreg.core.expectations.known import Known

    path = required(runners)
    fleet = read(path)
    ids = ids or own.ids_beside(path)
    known_ids = collected.read_ids(ids).ordered if ids is not None else ()
    list_beside = path.parent / "expectations.yaml"
    chosen = listed or (list_beside if list_beside.is_file() else None)
    entries = files.read(chosen) if chosen is not None else ()
    made = matrix(fleet, registry.backends(), Known.installed(), entries, known_ids)
    names = [runner.name for runner in fleet.runners]
    for name in only:
        if name not in names:
            near = completed(name, names)
            remedy = f"did you mean {near[0]}?" if near else "take one of these"
            message = wrong("--only", required=f"one of {', '.join(names)}", found=repr(name), remedy=remedy)
            raise UsageError(message, candidates=near or names)
    return fleet, Matrix(tuple(of(made.jobs, only)), made.findings)


def _changed(words: Sequence[str]) -> tuple[str, ...]:
    read = [line for line in sys.stdin.read().split("\n") if line] if "-" in words else []
    return tuple(dict.fromkeys(word.removeprefix("./") for word in (*words, *read) if word != "-"))


def _write(jobs: Sequence[Job], findings: Sequence[Finding], form: str) -> None:
    from kvreg.ci.matrix import formats

    if form == "json":
        render.document(formats.document(jobs, findings))
        return
    if form == "table":
        _table(jobs)
    else:
        # One line: `echo "matrix=$(kvreg ci select ...)" >> "$GITHUB_OUTPUT"` takes no more.
        print(json.dumps(getattr(formats, form)(jobs), indent=None if form == "github" else 2))
    for each in findings:
        line = f"{each.code}: {each.subject}: {each.text}"
        render.line(line) if form == "table" else click.echo(f"kvreg: {line}", err=True)


def _table(jobs: Sequence[Job]) -> None:
    from kvreg.ci.matrix.formats import arguments

    render.table(
        ("job", "device", "runner", "versions", "suite", "variants", "expectations"),
        [
            (
                job.id,
                f"{job.device} ({job.platform})",
                job.labels,
                _versions(job),
                job.suite,
                len(job.variants),
                len(job.expectations),
            )
            for job in jobs
        ],
    )
    render.line()
    for suite, words in dict.fromkeys((job.suite, arguments(job)) for job in jobs):
        render.line(f"suite {suite}: pytest {words}")


def _versions(job: Job) -> str:
    stated = {"Python": job.python, "torch": job.torch, "Triton": job.triton}
    return ", ".join(f"{name} {value}" for name, value in stated.items() if value) or "the machine's"


def _choices(choices: Sequence[Choice]) -> None:
    render.table(
        ("job", "device", "picked", "why"),
        [(each.job.id, each.job.device, each.picked, each.why) for each in choices],
    )
