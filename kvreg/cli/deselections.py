"""`kvreg deselections`: which tests are off where, why, until when, and what is wrong with the list that says so."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvreg.cli import render
from kvreg.cli.deselection_lists import export, import_
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Group
from kvreg.cli.unskip import unskip
from kvreg.core.errors import BadFile, UsageError
from kvreg.core.near import choice, nearest

if TYPE_CHECKING:
    from kvreg.core.expectations.entries import Expectation
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.lint import Finding
    from kvreg.core.expectations.predicates import Where

FINDING = 4
_FILE = click.option(
    "--file", "listed", type=NamedPath(path_type=Path), help="A list of expectations. Default: kvreg's own."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")


def _day(_: click.Context, __: click.Parameter, value: str | None) -> date:
    if value is None:
        return date.today()
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"required a day as YYYY-MM-DD, found {value!r}") from None


_AS_OF = click.option("--as-of", metavar="DATE", callback=_day, help="Judge expiry as of this day. Default: today.")


@click.group(cls=Group, invoke_without_command=True)
@click.option("--platform", help="Only entries that can hold on this platform.")
@click.option("--device", help="Only entries that can hold on this device: key, name, arch or PCI id.")
@_FILE
@_AS_OF
@_JSON
@click.pass_context
def deselections(
    context: click.Context,
    platform: str | None,
    device: str | None,
    listed: Path | None,
    as_of: date,
    as_json: bool,
) -> int | None:
    """Count the tests that are off, by platform and device, by issue and by variant; check and convert such lists."""
    if context.invoked_subcommand is not None:
        return None
    from kvreg.core.expectations.files import survey
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.overview import held
    from kvreg.core.expectations.own import required

    found = survey(listed or required())
    known = Known.installed()
    place = where(platform, device, known)
    entries = tuple(held(found.entries, known, place))
    unusable = sum(fault.is_grave for fault in found.faults)
    _overview(entries, known, found.file, as_of, unusable, as_json)
    return 0


def where(platform: str | None, device: str | None, known: Known) -> Where:
    """Return the place that two options name; raises UsageError for a platform that no backend has."""
    from kvreg.core import resolve
    from kvreg.core.expectations.predicates import Where

    platforms = known.names["platform"]
    if platform is not None and platform not in platforms:
        near = nearest(platform, platforms)
        text = f"platform {platform!r}: required one of {', '.join(platforms)}; {choice(platform, platforms)}"
        raise UsageError(text, candidates=near)
    if device is None:
        return Where(platform=platform)
    place = known.place(resolve.resolve(device).device)
    if platform not in (None, place.platform):
        raise UsageError(f"device {device}: required one of {platform}, found one of {place.platform}; leave one out")
    return place


def _overview(
    entries: tuple[Expectation, ...], known: Known, file: Path, as_of: date, unusable: int, as_json: bool
) -> None:
    from kvreg.core.expectations import documents
    from kvreg.core.expectations.overview import overview, word

    found = overview(entries, known, as_of)
    if as_json:
        render.document(documents.figures(found, entries, file, as_of))
        return
    render.line(f"{file}: {render.counted(len(entries), 'entry', 'entries')} as of {as_of}")
    if unusable:
        told = f"{render.counted(unusable, 'fault')} {'makes' if unusable == 1 else 'make'}"
        render.line(f"{told} entries unusable: `kvreg deselections check --file {file}` names them")
    if not entries:
        return
    render.line()
    render.table(
        ("place", "entries", "expected", "oldest", "expired", "due in 30 days", "not validated there"),
        [
            (
                each.platform if each.device is None else f"{each.platform}, {each.device}",
                each.entries,
                ", ".join(f"{count} {name}" for name, count in each.by_word.items()),
                each.oldest or "unknown",
                each.expired,
                each.due,
                ", ".join(each.invalidated) or "-",
            )
            for each in found.places
        ],
    )
    render.line()
    render.table(
        ("issue", "entries", "oldest", "next review"),
        [(each.issue or "none", each.entries, each.oldest or "-", each.next_review or "-") for each in found.issues],
    )
    render.line()
    render.table(
        ("id", "test", "when", "expected", "issue", "review by"),
        [
            (each.id, each.test, each.when, word(each), each.issue or "-", _review(each, as_of))
            for each in sorted(entries, key=lambda entry: (entry.review_by or date.max, entry.test))
        ],
    )
    render.line()
    render.line(f"kvreg deselections show {entries[0].id}")


def _review(entry: Expectation, as_of: date) -> str:
    if entry.review_by is None:
        return "-"
    return f"{entry.review_by} (expired)" if entry.expired(as_of) else str(entry.review_by)


deselections.add_command(import_)
deselections.add_command(export)
deselections.add_command(unskip)


@deselections.command()
@click.argument("wanted", metavar="ID")
@_FILE
@_AS_OF
@_JSON
def show(wanted: str, listed: Path | None, as_of: date, as_json: bool) -> None:
    """Show what one entry says: by its id or the start of it, its line, or its test."""
    from kvreg.core.expectations import documents
    from kvreg.core.expectations.files import survey
    from kvreg.core.expectations.own import required

    found = survey(listed or required())
    entry = _find(wanted, found.entries)
    if as_json:
        render.document({"schema": documents.SCHEMA, "entry": documents.entry(entry, as_of)})
        return
    render.line(f"{entry.id}: {entry.test}")
    for name, value in documents.entry(entry, as_of).items():
        if name not in ("id", "test", "file", "line", "when", "expired", "evidence") and value not in (None, "", []):
            render.line(f"{name}: {render.text(value)}")
    render.line(f"when: {entry.when}")
    for name, text in entry.evidence.items():
        render.line(f"evidence, {name}: {text}")
    render.line(f"stands in {entry.place}{', expired' if entry.expired(as_of) else ''}")


def _find(wanted: str, entries: tuple[Expectation, ...]) -> Expectation:
    for same in (
        [each for each in entries if wanted in (each.id, each.test, str(each.line), each.place)],
        [each for each in entries if wanted and each.id.startswith(wanted)],
    ):
        if len(same) == 1:
            return same[0]
        if same:
            ids = tuple(each.id for each in same)
            raise UsageError(
                f"entry {wanted}: required one entry, found {len(same)} of them; did you mean {' or '.join(ids[:3])}?",
                candidates=ids,
            )
    near = nearest(wanted, [name for each in entries for name in (each.id, each.test)], count=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`kvreg deselections` lists them"
    raise UsageError(f"entry {wanted}: required the id of an entry, found none; {hint}", candidates=near)


@deselections.command()
def schema() -> None:
    """Print the JSON schema of a list, for editors that complete and check YAML by it."""
    from kvreg.core.expectations.schema import text

    click.echo(text(), nl=False)


@deselections.command()
@_FILE
@click.option(
    "--ids",
    type=NamedPath(path_type=Path),
    help="Collected ids, one a line (`pytest --collect-only -q`). Default: test-ids.txt beside the list.",
)
@click.option("--fix", is_flag=True, help="Mend what is mechanical: equal duplicates, order, sure successors, hits.")
@_AS_OF
@_JSON
def check(listed: Path | None, ids: Path | None, fix: bool, as_of: date, as_json: bool) -> int:
    """Check a list from collected ids alone: dead, too wide, doubled, expired, unknown words, what is missing.

    Runs no test and needs no card. Ends with 4 when something is found, with 2 for a file that is no list.
    """
    from kvreg.core.expectations import documents, lint
    from kvreg.core.expectations.collected import read_ids
    from kvreg.core.expectations.files import survey
    from kvreg.core.expectations.fixing import mend
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.own import ids_beside, required

    file = listed or required()
    ids = ids or ids_beside(file)
    known, index = Known.installed(), read_ids(ids) if ids is not None else None
    found = survey(file)
    findings = lint.check(found, known, as_of, index)
    done: tuple[Finding, ...] = ()
    left = None
    while fix:
        mended = mend(found, findings)
        left = mended.left
        if not mended.done:
            break
        # A new id may stand in the wrong place, or be another entry's: once more, until nothing mechanical is left.
        done += mended.done
        _rewrite(file, mended.text)
        found = survey(file)
        findings = lint.check(found, known, as_of, index)
    if as_json:
        render.document(
            {
                "schema": documents.SCHEMA,
                "file": str(file),
                "ids": len(index) if index is not None else None,
                "as_of": str(as_of),
                "entries": len(found.entries),
                "findings": [documents.finding(each) for each in findings],
                "fixed": [documents.finding(each) for each in done],
                "not_fixed_because": left,
            }
        )
    else:
        _say(file, findings, done, left)
        checked = (
            f"against {render.counted(len(index), 'id')}"
            if index is not None
            else "against no ids (name some with --ids)"
        )
        entries = render.counted(len(found.entries), "entry", "entries")
        counted = f"{entries}, {render.counted(len(findings), 'finding')}"
        render.line(f"{file}: {counted} as of {as_of}, {checked}")
        fixable = sum(each.fixable for each in findings)
        if fixable and not fix:
            render.line(f"--fix mends {fixable} of them")
    return FINDING if findings else 0


def _rewrite(file: Path, text: str) -> None:
    """Put a list's new text in its place: behind a link, and with the line ends that it had."""
    from kvreg.core.shards import replace_file

    place = file.resolve()
    try:
        ends = "\r\n" if b"\r\n" in place.read_bytes() else "\n"
        replace_file(place, text.replace("\n", ends).encode())
    except OSError as error:
        raise BadFile(
            f"{file}: required a file that can be written, found: {error.strerror}; check the path"
        ) from None


def _say(file: Path, findings: tuple[Finding, ...], done: tuple[Finding, ...], left: str | None) -> None:
    for each in done:
        render.line(f"mended: {each.code}: {each.test}: {each.text}")
    for each in findings:
        render.line(f"{file}:{each.line}: {each.code}: {each.test}: {each.text}")
    if left is not None:
        render.line(f"nothing was mended: {left}")
