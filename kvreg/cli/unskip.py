"""`kvreg deselections unskip`: runs what is excepted here, each test by itself, and proposes what may go."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import extras, render
from kvreg.cli.finite import Finite
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Command
from kvreg.core import installed, notices
from kvreg.core.errors import UsageError, wrong

if TYPE_CHECKING:
    from kvreg.core.expectations.entries import Expectation
    from kvreg.core.expectations.files import Survey
    from kvreg.core.expectations.predicates import Where
    from kvreg.pytest.unskipping import Case, Tried

FINDING = 4
_VERSIONS = ("kvreg", "pytest", "torch", "triton", "numpy")


@click.command(cls=Command)
@click.option("--file", "listed", type=NamedPath(path_type=Path), help="A list of expectations. Default: kvreg's own.")
@click.option("--platform", help="The platform that is asked about. Default: this machine's.")
@click.option("--device", help="The device that is asked about; it must be here. Default: this machine's.")
@click.option("--only", metavar="ID", multiple=True, help="Only this entry (id, or the start of it); may be repeated.")
@click.option(
    "--ids",
    type=NamedPath(path_type=Path),
    help="Collected ids, one a line, for entries with wildcards. Default: their files are collected.",
)
@click.option(
    "--root",
    type=NamedPath(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="Folder that the ids count from. Default: the current one.",
)
@click.option("--n", "runs", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs of each test.")
@click.option(
    "--timeout-s",
    "limit_s",
    type=Finite(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds after which a run is killed, with everything that it has started.",
)
@click.option("--pytest-args", default="", metavar="TEXT", help="Further options of pytest, in one text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")
def unskip(
    listed: Path | None,
    platform: str | None,
    device: str | None,
    only: tuple[str, ...],
    ids: Path | None,
    root: Path,
    runs: int,
    limit_s: float,
    pytest_args: str,
    as_json: bool,
) -> int:
    """Run each test that is excepted on this machine, alone and several times; propose which entries may go.

    Nothing is changed: the proposal is a diff of the list. An entry may go when each of its tests passed each time and
    it holds for no other device. Ends with 4 when one may go, with 6 when the device asked about is not here.
    """
    from kvreg.core.expectations.collected import read_ids
    from kvreg.core.expectations.files import survey
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.own import required

    with extras.pytest("deselections unskip"):
        from kvreg.pytest import place
        from kvreg.pytest.unskipping import Trial, cases

    found = survey(listed or required())
    here = place.here(platform, device)
    trial = Trial(root.resolve(), runs, limit_s, _words(pytest_args))
    collected = read_ids(ids) if ids is not None else None
    entries = _chosen(found.entries, only)
    tried = cases(entries, here, Known.installed(), trial, collected, _progress)
    undecided = [each for each in entries if not each.holds(here) and each.when.may_hold(here)]
    proposal = _proposal(found, tried)
    environment = {**asdict(here), "versions": installed.versions(_VERSIONS), "day": date.today().isoformat()}
    if as_json:
        render.document(
            {
                "schema": 1,
                "file": str(found.file),
                "environment": environment,
                "runs": runs,
                "timeout_s": limit_s,
                "entries": [_document(each) for each in tried],
                "undecided": [{"id": each.id, "test": each.test, "line": each.line} for each in undecided],
                "diff": proposal,
            }
        )
    else:
        _show(found.file, here, environment, tried, proposal)
        for each in undecided:
            unknown = ", ".join(each.when.open_words(here))
            render.line(f"{each.id} {each.test}: not run: {unknown} unknown here, required {each.when}")
    return FINDING if any(each.may_go for each in tried) else 0


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        found = f"{text!r} ({error})"
        message = wrong("--pytest-args", required="words as a shell reads them", found=found, remedy="close the quote")
        raise UsageError(message) from None


def _chosen(entries: Sequence[Expectation], only: Sequence[str]) -> list[Expectation]:
    for wanted in only:
        # Every id starts with an empty text, such as a script's variable that nobody has set.
        if not wanted or not any(entry.id.startswith(wanted) for entry in entries):
            message = "required the id of an entry, found none; `kvreg deselections` lists them"
            raise UsageError(f"--only {wanted or repr('')}: {message}")
    return [entry for entry in entries if not only or any(entry.id.startswith(wanted) for wanted in only)]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, err=True)


def _proposal(found: Survey, tried: Sequence[Case]) -> str | None:
    """Return the diff that removes what may go; empty for nothing, None where the list cannot be edited by line."""
    from kvreg.core.expectations.fixing import without

    gone = {each.entry.line for each in tried if each.may_go}
    text = without(found, gone) if gone else found.text
    if text is None:
        return None
    name = os.path.relpath(found.file)  # what `git apply` takes from where the command was run
    old, new = found.text.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def _document(case: Case) -> dict[str, Any]:
    from kvreg.pytest.unskipping import word

    return {
        "id": case.entry.id,
        "test": case.entry.test,
        "line": case.entry.line,
        "expect": case.entry.expect,
        "may_go": case.may_go,
        "elsewhere": list(case.elsewhere),
        "tests": [
            {
                "id": each.test,
                "verdict": each.verdict,
                "runs": [
                    {"result": word(run), "seconds": round(run.seconds, 3), "detail": run.detail}
                    for run in each.outcomes
                ],
            }
            for each in case.tests
        ],
    }


def _show(file: Path, here: Where, environment: dict[str, Any], tried: Sequence[Case], proposal: str | None) -> None:
    if not tried:
        render.line(f"{file}: no entry holds on {here.device}")
        return
    render.table(
        ("entry", "expected", "result", "runs", "seconds", "test", "detail"),
        [_row(case, each) for case in tried for each in case.tests],
    )
    render.line()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment["versions"].items()))
    render.line(f"on {here.device} ({here.platform}, {here.arch}), {versions}, {environment['day']}")
    for case in tried:
        for text in _remarks(case):
            render.line(notices.one_line(f"{case.entry.id} {case.entry.test}: {text}"))
    if proposal is None:
        render.line(f"{file} cannot be edited by line: remove the entries by hand")
    elif proposal:
        render.line()
        for line in proposal.splitlines():
            render.line(line)


def _row(case: Case, tried: Tried) -> tuple[object, ...]:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(tried.counts.items()))
    seconds = sum(each.seconds for each in tried.outcomes) / len(tried.outcomes)
    detail = notices.one_line(tried.detail) or "-"
    return (case.entry.id, case.entry.expect, tried.verdict, counts, f"{seconds:.1f}", tried.test, detail)


def _remarks(case: Case) -> list[str]:
    from kvreg.core.expectations.vocabulary import Expect

    if not case.tests:
        return ["no test of this pattern was collected; `kvreg deselections check` names the nearest"]
    if not case.fixed:
        return []
    if case.elsewhere:
        shown = ", ".join(case.elsewhere[:3]) + (", ..." if len(case.elsewhere) > 3 else "")
        return [
            f"fixed here, and it also holds for {len(case.elsewhere)} other devices ({shown}): "
            "narrow its `when` by hand, or show the same there"
        ]
    runs = min(len(each.outcomes) for each in case.tests)
    remarks = [f"may go: every test passed {runs} of {runs} times"]
    if case.entry.expect is Expect.FLAKY:
        remarks.append(
            f"flaky: a test that fails every other time passes {runs} times with a chance of {0.5**runs:.2g}"
        )
    return remarks
