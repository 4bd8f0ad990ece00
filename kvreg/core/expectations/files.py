"""Reads a file of expectations: each entry with its line, and what is wrong with it as data.

`read` is for those who act on a list and wants every word of it known; `survey` is for the check, which names every
fault of a list. Both raise BadFile for what is no list at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from kvreg.core import input_files
from kvreg.core.errors import BadFile
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.node_ids import Pattern, misread
from kvreg.core.expectations.predicates import When, parse
from kvreg.core.expectations.vocabulary import EVERYWHERE, REQUIRED, WORDS, Expect, Kind
from kvreg.core.near import suggestion

UNKNOWN_WORD = "unknown_word"
BAD_ENTRY = "bad_entry"
NO_KIND = "no_kind"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an entry by itself."""

    code: str
    """unknown_word and bad_entry (the entry cannot be used), no_kind, no_reason, no_issue, no_owner, ..."""
    line: int
    test: str
    text: str
    field: str

    @property
    def is_grave(self) -> bool:
        """Whether the entry cannot be used."""
        return self.code in (UNKNOWN_WORD, BAD_ENTRY)


@dataclass(frozen=True, slots=True)
class Survey:
    """A file's usable entries, their last lines, and the faults of all."""

    file: Path
    text: str
    entries: tuple[Expectation, ...]
    faults: tuple[Fault, ...]
    last_lines: Mapping[int, int]
    """First line of each entry of the file -> its last line."""


def read(path: Path) -> tuple[Expectation, ...]:
    """Return the entries of a file; raises BadFile for the first one that cannot be used."""
    return usable(path).entries


def usable(path: Path) -> Survey:
    """Return what `survey` does of a file whose every entry can be used; raises BadFile for the first that cannot."""
    found = survey(path)
    for fault in found.faults:
        if fault.is_grave:
            raise BadFile(f"{path}:{fault.line}: {fault.text}")
    return found


def survey(path: Path) -> Survey:
    """Return the entries and faults of a file; raises BadFile where it is no list of expectations."""
    return survey_text(read_text(path), path)


def survey_text(text: str, path: Path) -> Survey:
    """Return the entries and faults of a list's text as if it stood in the file `path`; see `survey`."""
    from kvreg.core.expectations.lined_yaml import parse as parse_yaml  # YAML and pydantic: 150 ms

    document = parse_yaml(text, path)
    records = _records(document, path)
    entries: list[Expectation] = []
    faults: list[Fault] = []
    for record in records:
        found, problems = _entry(record, path)
        faults += problems
        if found is not None:
            entries.append(found)
    return Survey(path, text, tuple(entries), tuple(faults), {record.line: record.last for record in records})


def read_text(path: Path) -> str:
    """Return a file's text, a byte-order mark left out; raises BadFile where there is none to read."""
    return input_files.read_text(path, "text file", encoding="utf-8-sig")


def _records(document: Any, path: Path) -> list[Any]:
    found = "no mapping"
    if isinstance(document, Mapping):
        found = f"schema {document.get('schema')!r} and the keys {', '.join(map(str, document))}"
        records = document.get("expectations", "")
        if document.get("schema") == str(SCHEMA) and set(document) == {"schema", "expectations"}:
            if isinstance(records, list) and all(isinstance(each, Mapping) for each in records):
                return records
            if records is None:
                return []
            found = "expectations that are no list of mappings"
    raise BadFile(
        f"{path}: required a list of expectations (`schema: {SCHEMA}`, then `expectations:`), found {found}; "
        "`kvreg deselections import` reads other lists"
    )


def _entry(record: Any, path: Path) -> tuple[Expectation | None, list[Fault]]:
    """Return the entry of one mapping, None where it cannot be used, and everything that is wrong with it."""
    from pydantic import ValidationError

    from kvreg.core.expectations.schema import Entry

    stated = {key: value for key, value in record.items() if value is not None}  # a field left empty is left out
    faults: list[Fault] = []
    try:
        Entry.model_validate(stated)
    except ValidationError as error:
        faults = _faults(error.errors(include_url=False), record, stated)
    wrong = {fault.field for fault in faults}
    usable = {key: value for key, value in stated.items() if key not in wrong}
    if any(fault.is_grave for fault in faults):
        return None, faults
    try:
        when = parse(usable["when"])
    except ValueError as error:
        return None, [*faults, _grave(record, "when", f"{error}; correct the condition")]
    unread = misread(usable["test"].strip())
    if unread is not None:
        return None, [*faults, _grave(record, "test", f"{unread}; correct it")]
    entry = _built(usable, when, path, record.line)
    if entry.kind is not None and entry.expect is not Expect.SKIP:
        text = f"required only of a skip, found it on {entry.expect}; leave it out"
        return None, [*faults, _grave(record, "kind", text)]
    if entry.expect is Expect.SKIP and entry.kind is None:
        text = f"kind: required of a skip ({', '.join(Kind)}), found none; say why it cannot run, or make it xfail"
        faults.append(Fault(NO_KIND, record.line, entry.test, text, "kind"))
    return entry, faults


def _built(usable: Mapping[str, Any], when: When, path: Path, line: int) -> Expectation:
    kind, hits = usable.get("kind"), usable.get("hits")
    return Expectation(
        pattern=Pattern(usable["test"].strip()),
        when=when,
        expect=Expect(usable["expect"]),
        file=path,
        line=line,
        kind=Kind(kind) if kind is not None else None,
        reason=usable.get("reason", "").strip(),
        issue=usable.get("issue", ""),
        owner=usable.get("owner", "").strip(),
        added=_date(usable.get("added")),
        review_by=_date(usable.get("review_by")),
        invalidates=tuple(usable.get("invalidates", ())),
        touches=tuple(usable.get("touches", ())),
        hits=int(hits) if hits is not None else None,
        evidence=dict(usable.get("evidence", {})),
    )


def _date(text: str | None) -> date | None:
    return date.fromisoformat(text) if text is not None else None


def _faults(errors: Iterable[Mapping[str, Any]], record: Any, stated: Mapping[str, Any]) -> list[Fault]:
    """Return what is wrong with each field: all its unknown words, else its first error.

    pydantic names every member of a union that a value is not.
    """
    by_field: dict[str, list[Mapping[str, Any]]] = {}
    for error in errors:
        by_field.setdefault(str(error["loc"][0]), []).append(error)
    found: list[Fault] = []
    for field, told in by_field.items():
        unknown = [str(error["loc"][-1]) for error in told if error["type"] == "extra_forbidden"]
        if unknown:
            found += [_unknown_word(field, word, record) for word in unknown]
        else:
            found.append(_fault(field, told[0], record, stated))
    return found


def _unknown_word(field: str, word: str, record: Any) -> Fault:
    from kvreg.core.expectations.schema import Entry

    inside = field == "when"
    owner, known = (record["when"], WORDS) if inside else (record, Entry.model_fields)
    text = f"{'when.' if inside else ''}{word}: required a known word, found none of that name; "
    return Fault(UNKNOWN_WORD, owner.lines[word], _test(record), text + suggestion(word, known), field)


def _fault(field: str, error: Mapping[str, Any], record: Any, stated: Mapping[str, Any]) -> Fault:
    """Return one error of pydantic as a fault of the list."""
    line = record.lines.get(field, record.line)
    if error["type"] == "missing":
        text = f"{field}: required, found none; "
        if field in REQUIRED:
            return Fault(f"no_{field}", record.line, _test(record), f"{text}add it", field)
        return _grave(record, field, "required, found none; every entry needs it")
    value = stated.get(field)
    found = repr(value)[:80]
    if field in _CHOICES and isinstance(value, str):
        choices = _CHOICES[field]
        text = f"{field}: required {', '.join(choices)}, found {found}; {suggestion(value, choices)}"
        return Fault(UNKNOWN_WORD, line, _test(record), text, field)
    if field == "when" and (unread := _misread(value)):
        return _grave(record, field, f"{unread}; correct the condition")
    text = f"required {_FORMS[field]}, found {found}; correct it"
    if field in REQUIRED:
        return Fault(f"no_{field}", line, _test(record), f"{field}: {text}", field)
    return _grave(record, field, text)


def _misread(value: Any) -> str | None:
    """Return what the predicate's own reader says of a condition; None where it cannot even start."""
    if not isinstance(value, Mapping):
        return None
    try:
        parse({word: each for word, each in value.items() if isinstance(each, str | list)})
    except (ValueError, AttributeError) as error:
        return str(error) if isinstance(error, ValueError) else None
    return None


_CHOICES = {"expect": tuple(Expect), "kind": tuple(Kind)}
_FORMS = {
    "test": "a node id",
    "when": f"{EVERYWHERE} or conditions on {', '.join(WORDS)}",
    "expect": "one word",
    "kind": "one word",
    "reason": "a text",
    "issue": "a URL or owner/repository#number",
    "owner": "a text",
    "added": "a date (YYYY-MM-DD)",
    "review_by": "a date (YYYY-MM-DD)",
    "invalidates": "a list of variants (name@version)",
    "touches": "a list of variants (name@version)",
    "hits": "a count",
    "evidence": "a mapping of texts",
}


def _grave(record: Any, field: str, text: str) -> Fault:
    return Fault(BAD_ENTRY, record.lines.get(field, record.line), _test(record), f"{field}: {text}", field)


def _test(record: Mapping[str, Any]) -> str:
    return str(record.get("test") or "")
