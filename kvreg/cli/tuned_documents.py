"""`kvreg tuned` as JSON documents, schema 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvreg.core import documents
from kvreg.core.devices import Resolution
from kvreg.core.requests import Request
from kvreg.core.tuned_files import EntryRecord
from kvreg.core.tuned_misses import Miss
from kvreg_tuning.checking import Finding
from kvreg_tuning.differences import Pair
from kvreg_tuning.filters import Filter
from kvreg_tuning.serving import Served
from kvreg_tuning.stock import Item, Stock
from kvreg_tuning.store import Merge


def listing(stock: Stock, asked: Filter) -> dict[str, Any]:
    """Return the entries that were asked for; `nearest` and `command` are given where there are none."""
    items = [item for item in stock.items if not asked.differing(item)]
    nearest = () if items else asked.nearest(stock.items)
    return {
        "schema": documents.SCHEMA,
        "entries": [_item(item) for item in items],
        "nearest": [{**_item(item), "differing": list(asked.differing(item))} for item in nearest],
        "command": None if items else asked.command,
        "faults": [{"file": str(each.path), "problem": each.problem} for each in stock.faults],
    }


def shown(found: Resolution, request: Request, answers: Sequence[Served]) -> dict[str, Any]:
    """Return what each op of a request gets."""
    return {
        "schema": documents.SCHEMA,
        "device": documents.device(found),
        "request": documents.request(request),
        "ops": [
            {
                "op": each.wanted.op.value,
                "variant": each.wanted.variant,
                "bucket": str(each.wanted.bucket),
                "config_source": each.source,
                "serves": _item(each.item) if each.item is not None else None,
                "notes": [documents.note(note) for note in each.notes],
                "passed_over": [{**_item(item), "why": why} for item, why in each.passed_over],
                "miss": _miss(each.miss) if each.miss is not None else None,
            }
            for each in answers
        ],
    }


def checked(stock: Stock, found: Sequence[Finding]) -> dict[str, Any]:
    """Return every finding with its remedy."""
    return {
        "schema": documents.SCHEMA,
        "files": [str(place.path) for place in stock.places],
        "entries": len(stock.items),
        "findings": [
            {"kind": each.kind, "file": str(each.file), "problem": each.problem, "remedy": each.remedy}
            for each in found
        ],
    }


def compared(first: Path, second: Path, differing: Sequence[Pair]) -> dict[str, Any]:
    """Return what differs between two files; null stands for an entry that one of them lacks."""
    return {
        "schema": documents.SCHEMA,
        "first": str(first),
        "second": str(second),
        "differences": [
            {
                "fields": list(pair.differing),
                "first": _entry(pair.first) if pair.first is not None else None,
                "second": _entry(pair.second) if pair.second is not None else None,
            }
            for pair in differing
        ],
    }


def merged(report: Merge, device: str, dry_run: bool) -> dict[str, Any]:
    """Return what became of each entry."""
    return {
        "schema": documents.SCHEMA,
        "file": str(report.path),
        "device": device,
        "written": not dry_run,
        "entries": report.total,
        "set_aside": str(report.set_aside) if report.set_aside is not None else None,
        "faults": list(report.faults),
        "changes": [
            {
                "fate": each.fate,
                "why": each.why,
                "entry": _entry(each.entry),
                "other": _entry(each.other) if each.other is not None else None,
            }
            for each in report.changes
        ],
    }


def _item(item: Item) -> dict[str, Any]:
    return {
        "device": item.place.device,
        "file": str(item.place.path),
        "overlay": item.place.overlay,
        "state": item.state,
        "remarks": [
            {"code": each.code, "problem": each.problem, "remedy": each.remedy or None} for each in item.remarks
        ],
        **_entry(item.entry),
    }


def _entry(entry: EntryRecord) -> dict[str, Any]:
    return entry.model_dump(mode="json")


def _miss(missed: Miss) -> dict[str, Any]:
    return {
        "looked_for": str(missed.wanted),
        "nearest": [
            {
                "file": near.file,
                "differing": [
                    {"field": each.field, "wanted": each.wanted, "found": each.found} for each in near.differences
                ],
            }
            for near in missed.near
        ],
        "command": missed.command,
    }
