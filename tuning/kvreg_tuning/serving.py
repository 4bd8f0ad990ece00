"""Which tuned entry serves a request, which ones are passed over and why, and what was looked for in vain."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg.core.devices import Device
from kvreg.core.launchable import Launchable
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import ConfigSource, Note
from kvreg.core.tuned import Entry, by_precedence, choose, refusal
from kvreg.core.tuned_misses import Miss, Wanted, miss
from kvreg.core.variants import Variant
from kvreg_tuning.stock import Item, Stock


@dataclass(frozen=True, slots=True)
class Served:
    """What one variant gets for a request, as select decides it."""

    wanted: Wanted
    source: ConfigSource
    item: Item | None
    """The entry that serves; None where the variant's default does."""
    notes: tuple[Note, ...]
    passed_over: tuple[tuple[Item, str], ...]
    """Entries of the request's shape that do not serve, in the order in which they are tried, with the reason."""
    miss: Miss | None


def served(stock: Stock, device: Device, request: Request, mode: Mode, op: Op) -> list[Served]:
    """Return what each variant of an op gets."""
    return [_of_variant(stock, device, request, variant) for variant in stock.variants(device, mode, op)]


def _of_variant(stock: Stock, device: Device, request: Request, variant: Variant) -> Served:
    shelves = stock.shelves(device.key, device.parent)
    name = str(variant.id)
    kernel_hash = stock.kernel_hash(device, name) or ""
    offered = Launchable(stock.offered(device, name)[0], variant, device, request)
    choice = choose(offered, kernel_hash, shelves, stock.versions(device))
    wanted = Wanted.of(request, device, name, variant.op, variant.mode, kernel_hash or None)
    item, passed_over = None, []
    for shelf, entry in by_precedence(variant, request, shelves):
        refused = refusal(entry, shelf, kernel_hash, offered)
        if refused is None and item is None:
            item = _item(stock, entry)
        else:
            passed_over.append((_item(stock, entry), refused.problem if refused else "another one goes before it"))
    kin = {key for key in (device.key, device.parent) if key} | {
        each.key for each in stock.index.devices() if each.arch == device.arch and each.platform == device.platform
    }
    missed = miss(wanted, stock.shelves(*kin)) if item is None else None
    return Served(wanted, choice.source, item, choice.notes, tuple(passed_over), missed)


def _item(stock: Stock, entry: Entry) -> Item:
    return next(item for item in stock.items if item.flat is entry)
