"""`kvreg deselections import` and `export`: between expectations and the lists of other tools."""

from __future__ import annotations

import math
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import render
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Command
from kvreg.cli.output_file import OutputFile
from kvreg.core import notices
from kvreg.core.errors import BadFile, UsageError
from kvreg.core.near import choice

if TYPE_CHECKING:
    from kvreg.ci.lists.drafts import Drafts
    from kvreg.ci.lists.exporting import Exported
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.matching import IdIndex

SOURCES = ("pipelines", "intel", "pytorch", "array-api", "arguments")
FORMATS = ("arguments", "intel", "pytorch", "array-api-skips", "array-api-xfails")
_SAID = {"memory_gib": "24", "triton": "3.8"}
"""Values of the words of --at, for a word that is named alone."""
_SHOWN = 20
"""Rows of a table for people; --output and --json have all."""

_PATH = NamedPath(path_type=Path)
_IDS = click.option("--ids", type=_PATH, help="Collected ids: what patterns and folders take is then known.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")


@click.command("import", cls=Command)
@click.argument("source", type=_PATH)
@click.option(
    "--from",
    "form",
    type=click.Choice(SOURCES),
    help="Default: by the name (YAML, scripts, .json, folders of .txt).",
)
@_IDS
@click.option("--platform", help="Where a list holds that does not say it.")
@click.option("--device", help="The same, for one device.")
@click.option("--output", type=OutputFile(), help="Write the list there.")
@click.option("--report", type=OutputFile(), help="Write a Markdown page on what was found there.")
@click.option("--title", default="Imported deselections", show_default=True, help="The page's title.")
@_JSON
def import_(
    source: Path,
    form: str | None,
    ids: Path | None,
    platform: str | None,
    device: str | None,
    output: Path | None,
    report: Path | None,
    title: str,
    as_json: bool,
) -> None:
    """Read what other lists switch off: CI pipelines, Intel's skip lists, PyTorch's disabled tests, array-api-tests.

    Comments become reasons. What is missing (issue, owner, day of review, kind of a skip) is counted and left out, a
    place that is read out of a job's label is listed as a guess, and what no entry can say is listed with the reason.
    """
    from kvreg.ci.lists import documents
    from kvreg.ci.lists.drafts import drafts
    from kvreg.core.expectations import writing
    from kvreg.core.expectations.collected import read_ids
    from kvreg.core.expectations.known import Known

    known = Known.installed()
    exclusions, named = _read(source, form or _form(source), known, platform, device)
    found = drafts(exclusions, named, read_ids(ids) if ids is not None else None)
    if output is not None:
        _write(output, writing.text(found.entries, heading=documents.heading(found, source.name)))
    if report is not None:
        _write(report, documents.page(found, title, source.name))
    if as_json:
        render.document(documents.imported(found, date.today()))
        return
    _show(found, output, report)


def _form(source: Path) -> str:
    if not source.exists():
        raise BadFile(f"{source}: required a file or folder, found none; check the path")
    if source.suffix == ".json":
        return "pytorch"
    if source.suffix in (".yml", ".yaml", ".sh"):
        return "pipelines"
    if source.is_dir():
        suffixes = {path.suffix for path in source.rglob("*")}
        return "pipelines" if suffixes & {".yml", ".yaml"} else "intel"
    raise UsageError(f"{source}: required --from for a file of this name; it is one of {', '.join(SOURCES)}")


def _read(source: Path, form: str, known: Known, platform: str | None, device: str | None) -> tuple[Any, Any]:
    from kvreg.ci.lists import pipelines, pytorch, skip_lists
    from kvreg.ci.lists.exclusions import Place
    from kvreg.ci.lists.guesses import Guesser
    from kvreg.cli.deselections import where
    from kvreg.core.expectations.predicates import parse

    place = where(platform, device, known)
    told = {word: name for word in ("device", "arch", "platform") if (name := getattr(place, word)) is not None}
    narrowest = dict(list(told.items())[:1])
    guesser = Guesser(known.devices)
    if form == "pipelines":
        if narrowest:
            raise UsageError("--platform and --device are for lists that say no place; a pipeline's jobs do")
        files = pipelines.pipeline_files(source)
        found = pipelines.read_pipelines(files, guesser, source if source.is_dir() else source.parent)
        return found.exclusions, found.named
    if form == "pytorch":
        return pytorch.read_disabled(source), ()
    if form == "intel":
        return skip_lists.read_intel(source, guesser, parse(narrowest) if narrowest else None), ()
    said = parse(narrowest or "everywhere")
    reader = skip_lists.read_array_api if form == "array-api" else skip_lists.read_arguments
    return reader(source, Place(str(said), said)), ()


def _write(path: Path, text: str) -> None:
    from kvreg.core.shards import replace_file

    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadFile(f"{path}: required a path that can be written, found: {error.strerror}; name another") from None


def _show(found: Drafts, output: Path | None, report: Path | None) -> None:
    render.line(
        f"{render.counted(len(found.exclusions), 'exclusion')}:"
        f" {render.counted(len(found.entries), 'entry', 'entries')}, {len(found.left_out)} left out"
        " (what several jobs say alike is one entry)"
    )
    if found.entries:
        render.line()
        rows = [
            (each.test, each.when, f"{found.sources[each.id].file}:{found.sources[each.id].line}", each.reason or "-")
            for each in found.entries
        ]
        render.table(("test", "when", "from", "reason"), rows[:_SHOWN])
        _more(rows)
    if found.guesses:
        render.line()
        guessed = list(found.guesses.items())
        render.table(("label", "guess"), guessed[:_SHOWN])
        _more(guessed)
    if found.left_out:
        render.line()
        left = [
            (each.exclusion.text, f"{each.exclusion.file}:{each.exclusion.line}", each.why) for each in found.left_out
        ]
        render.table(("left out", "from", "why"), left[:_SHOWN])
        _more(left)
    render.line()
    missing = ", ".join(f"{name} of {count}" for name, count in found.missing.items())
    render.line(f"missing, and not invented: {missing}" if missing else "nothing is missing")
    for path in filter(None, (output, report)):
        render.line(f"wrote {path}")
    if output is not None:
        render.line(f"kvreg deselections check --file {output}")


def _more(rows: list[Any]) -> None:
    if len(rows) > _SHOWN:
        render.line(f"and {len(rows) - _SHOWN} more, with --json")


@click.command(cls=Command)
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="`arguments` is for `pytest @FILE`.")
@click.option("--file", "listed", type=_PATH, help="A list of expectations. Default: kvreg's own.")
@click.option("--platform", help="The place that the list is for; needed by all formats but pytorch.")
@click.option("--device", help="The same, for one device.")
@click.option(
    "--at", "said", multiple=True, metavar="WORD=VALUE", help="More of the place: triton=3.8, memory_gib=24, ..."
)
@_IDS
@click.option("--output", type=OutputFile(), help="Write there instead of to standard output.")
@_JSON
def export(
    form: str,
    listed: Path | None,
    platform: str | None,
    device: str | None,
    said: tuple[str, ...],
    ids: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write expectations as another tool's list: what holds at one place, and on stderr what the format cannot say."""
    from kvreg.core.expectations.collected import read_ids
    from kvreg.core.expectations.files import read
    from kvreg.core.expectations.own import required

    entries = read(listed or required())
    found = _export(form, entries, platform, device, said, read_ids(ids) if ids is not None else None)
    if output is not None:
        _write(output, found.text)
    if as_json:
        left = [{"id": entry.id, "test": entry.test, "why": why} for entry, why in found.left_out]
        document = {"schema": 1, "format": form, "written": found.written, "left_out": left, "text": found.text}
        render.document(document)
        return
    for entry, why in found.left_out:
        click.echo(f"kvreg: left out: {notices.one_line(f'{entry.test}: {why}')}", err=True)
    if output is None:
        # A terminal gets no control character; what a program reads is the list as it is.
        shown = map(notices.printable, found.text.splitlines()) if render.is_terminal() else found.text.splitlines()
        click.echo("".join(f"{line}\n" for line in shown), nl=False)
    else:
        render.line(f"wrote {output}: {render.counted(found.written, 'entry', 'entries')}")


def _export(
    form: str, entries: Any, platform: str | None, device: str | None, said: tuple[str, ...], ids: IdIndex | None
) -> Exported:
    from kvreg.ci.lists import exporting
    from kvreg.core.expectations.vocabulary import Expect

    if form == "pytorch":
        return exporting.disabled(entries)
    if platform is None and device is None:
        raise UsageError(
            f"--format {form}: required --platform or --device, found neither; such a list is for one place"
        )
    place = _place(platform, device, said)
    if form == "arguments":
        return exporting.arguments(entries, place, ids)
    if form == "intel":
        return exporting.intel(entries, place, ids)
    expect = Expect.XFAIL if form.endswith("xfails") else Expect.SKIP
    return exporting.array_api(entries, place, expect, ids)


def _place(platform: str | None, device: str | None, said: tuple[str, ...]) -> Any:
    from dataclasses import replace

    from kvreg.cli.deselections import where
    from kvreg.core.expectations.known import Known
    from kvreg.core.expectations.vocabulary import NAMES, WORDS

    more: dict[str, Any] = {}
    times = Counter(each.partition("=")[0] for each in said)
    words = [word for word in WORDS if word not in NAMES]
    for each in said:
        word, _, value = each.partition("=")
        if word not in words:
            raise UsageError(
                f"--at {each}: required WORD=VALUE, WORD one of {', '.join(words)}; {choice(word, words)}"
            )
        if not value:
            raise UsageError(
                f"--at {each}: required WORD=VALUE, found no value; say {word}={_SAID.get(word, 'VERSION')}"
            )
        if times[word] > 1:
            raise UsageError(f"--at {word}: required once, found {times[word]} times; name one value")
        try:
            more[word] = _finite(value) if word == "memory_gib" else value
        except ValueError:
            raise UsageError(f"--at {each}: required GiB as a number, found {value!r}") from None
    return replace(where(platform, device, Known.installed()), **more)


def _finite(text: str) -> float:
    """Return a number; ValueError for nan and inf too, which no bound can be compared with."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
