"""`kvreg tuned` for people: tables, the reason in a sentence, and the next useful command as the last line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvreg.cli import render
from kvreg.core.buckets import Bucket
from kvreg.core.devices import Resolution
from kvreg.core.layouts import default
from kvreg.core.requests import Op, Request
from kvreg.core.tuned_files import EntryRecord
from kvreg.core.tuned_misses import Miss
from kvreg_tuning.checking import Finding
from kvreg_tuning.differences import Pair
from kvreg_tuning.filters import Filter
from kvreg_tuning.serving import Served
from kvreg_tuning.stock import Item, Stock
from kvreg_tuning.store import Merge


def listing(stock: Stock, asked: Filter) -> None:
    """Print the entries that were asked for, else the nearest ones and the command that would tune it."""
    items = [item for item in stock.items if not asked.differing(item)]
    if not items:
        render.line(f"no tuned entry for {asked}" if stock.items else "nothing has been tuned here")
        for item in asked.nearest(stock.items):
            render.line(f"near: {item.entry} on {item.place.device}: differs in {', '.join(asked.differing(item))}")
        render.line()
        render.line(asked.command)
        return
    render.table(
        ("device", "variant", "shape", "bucket", "launch parameters", "us", "state"),
        [
            (
                item.place.device,
                item.entry.variant,
                _shape(item.entry),
                item.entry.bucket,
                _config(item.entry),
                _times(item.entry),
                f"{item.entry.source}, {'overlay' if item.place.overlay else 'shipped'}, {item.state}",
            )
            for item in items
        ],
    )
    render.line()
    render.line(_show(next((item for item in items if item.state in ("current", "other versions")), items[0])))


def shown(found: Resolution, request: Request, answers: Sequence[Served]) -> None:
    """Print what each op gets, in full."""
    device = found.device
    render.line(f"{device.key}: {device.name}, matched by {found.matched_by.replace('_', ' ')}")
    if not answers:
        render.line(f"no variant on {device.platform} serves {request.mode}")
    for each in answers:
        render.line()
        if each.item is not None:
            _serves(each, each.item)
        elif each.miss is not None:
            _missed(each.miss)
        for note in each.notes:
            render.line(f"note: {note.text}")
        for item, why in each.passed_over:
            render.line(f"passed over: {item.entry.bucket} ({item.entry.source}) in {item.place.path}: {why}")
    render.line()
    tuned = [each.miss.command for each in answers if each.miss is not None]
    render.line(tuned[0] if tuned else "kvreg tuned check")


def checked(stock: Stock, found: Sequence[Finding]) -> None:
    """Print the first finding of each kind and file with its remedy, then how many there are of each kind."""
    alike: dict[tuple[str, Path], list[Finding]] = {}
    for each in found:
        alike.setdefault((each.kind, each.file), []).append(each)
    for (kind, file), some in alike.items():
        render.line(f"{kind}: {file}: {some[0].problem}; {some[0].remedy}")
        if len(some) > 1:
            render.line(f"  and {len(some) - 1} more of that kind there; --json lists them")
    kinds = Counter(each.kind for each in found)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing found"
    entries = render.counted(len(stock.items), "entry", "entries")
    render.line(f"{entries} in {render.counted(len(stock.places), 'file')}: {told}")


def compared(first: Path, second: Path, differing: Sequence[Pair]) -> None:
    """Print each difference; entries of one file alone after those of both."""
    both = [pair for pair in differing if pair.first is not None and pair.second is not None]
    if both:
        render.table(
            ("entry", "differs in", "first", "us", "second", "us", "source"),
            [_compared(pair) for pair in both],
            title=f"first {first}, second {second}",
        )
        render.line()
    for side, path in (("first", first), ("second", second)):
        for pair in differing:
            if pair.side == side:
                render.line(f"only in {path}: {pair.entry}: {_config(pair.entry)}, {_times(pair.entry)} us")
    count = len(differing)
    render.line(f"{count} {'entry differs' if count == 1 else 'entries differ'}" if count else "no entry differs")


def merged(report: Merge, dry_run: bool) -> None:
    """Print what became of each entry."""
    if report.changes:
        render.table(
            ("entry", "became", "launch parameters", "us", "instead of", "us", "for it is"),
            [
                (
                    change.entry,
                    change.fate,
                    _config(change.entry),
                    _times(change.entry),
                    _config(change.other) if change.other is not None else "-",
                    _times(change.other) if change.other is not None else "-",
                    change.why or "new",
                )
                for change in report.changes
            ],
        )
        render.line()
    fates = Counter(change.fate for change in report.changes)
    told = ", ".join(f"{count} {fate}" for fate, count in fates.items()) or "nothing to merge"
    entries = render.counted(report.total, "entry", "entries")
    render.line(f"{report.path}: {told}; {entries}{' (nothing written)' if dry_run else ''}")
    if report.set_aside is not None:
        render.line(f"the file as it was: {report.set_aside}")


def _serves(answer: Served, item: Item) -> None:
    entry = item.entry
    exact = entry.bucket == str(answer.wanted.bucket)
    rows = [
        ("serves", answer.wanted),
        ("config source", answer.source + ("" if exact else f": {entry.bucket} stands in")),
        ("launch parameters", _config(entry)),
        ("us", f"{_times(entry)}{_improvement(entry)}"),
        ("spread of samples", entry.spread),
        ("fraction of the card's limit", entry.fraction_of_limit),
        ("gate", json.dumps(entry.gate)),
        ("resources", entry.resources),
        ("made with", entry.environment or "unknown versions"),
        ("kernel", entry.kernel_hash[:16]),
        ("date", entry.date),
        ("file", item.place.path),
    ]
    render.table((answer.wanted.op, entry.variant), rows)


def _missed(missed: Miss) -> None:
    told = "the nearest entries:" if missed.near else f"no entry of {missed.wanted.op} is near it"
    render.line(f"{missed.wanted.op}: no tuned entry serves {missed.wanted}; {told}")
    for near in missed.near:
        differing = ", ".join(f"{each.field} {each.found} (not {each.wanted})" for each in near.differences)
        render.line(f"  {near.entry.bucket} in {near.file}: {differing or near}")


def _compared(pair: Pair) -> tuple[object, ...]:
    first, second = pair.first, pair.second
    assert first is not None
    assert second is not None
    sources = dict.fromkeys((first.source, second.source))
    figures = (_config(first), _times(first), _config(second), _times(second))
    return (pair.entry, pair.differing, *figures, " and ".join(sources))


def _shape(entry: EntryRecord) -> str:
    group = "" if entry.op is Op.WRITE else f" group {entry.group}"
    return f"head {entry.head_size}{group} page {entry.page} {entry.dtype}"


def _config(entry: EntryRecord) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(entry.config.items()))


def _times(entry: EntryRecord) -> str:
    if entry.latency_us is None:
        return "-"
    default = f" (default {entry.default_latency_us:.4g})" if entry.default_latency_us is not None else ""
    return f"{entry.latency_us:.4g}{default}"


def _improvement(entry: EntryRecord) -> str:
    tie = ", a tie with another finalist" if entry.tie else ""
    return f", {entry.improvement:.1%} under the default{tie}" if entry.improvement is not None else tie


def _show(item: Item) -> str:
    """Return the command that shows an entry in full: `kvreg tuned show` of a request that it answers."""
    entry, work = item.entry, Bucket.parse(item.entry.bucket)
    plain = Request(device=item.place.device, mode=entry.mode, head_size=entry.head_size)
    options: dict[str, object] = {
        "device": plain.device, "mode": entry.mode, "head-size": entry.head_size, "op": entry.op,
        "variant": entry.variant, "batch": work.batch,
    }  # fmt: skip
    if entry.op != Op.WRITE:
        options |= {"context": work.context, "q-heads": entry.group * plain.kv_heads, "kv-heads": plain.kv_heads}
    usual = {"page": plain.page, "dtype": plain.dtype, "layout": str(default(entry.mode))}
    options |= {name: getattr(entry, name) for name, value in usual.items() if getattr(entry, name) != value}
    words = [f"--{name} {value}" for name, value in options.items()]
    if tuple(entry.features) != plain.features:
        words += [f"--feature {word}" for word in entry.features]
    return " ".join(["kvreg tuned show", *words])
