"""`kvreg tuned`: what was tuned, here and by others; listed, shown, checked, compared and merged.

Every import of the tuner's store waits for its command: it reads YAML, and listing the options does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.cli import extras, render
from kvreg.cli.asked import require_known
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Group
from kvreg.cli.output_file import OutputFile
from kvreg.core import asking, constraints, environment, notices, resolve
from kvreg.core.errors import KvregError, Refused, UnknownDevice, UsageError, wrong
from kvreg.core.requests import Op

if TYPE_CHECKING:
    from kvreg.core.devices import Device
    from kvreg.core.requests import Request
    from kvreg.core.tuned_files import Contents
    from kvreg.core.variants import Variant
    from kvreg_tuning.stock import Fault, Stock

FINDING = 4
_OPS = click.Choice([op.value for op in Op])
_FILE = NamedPath(path_type=Path)


@click.group(cls=Group)
def tuned() -> None:
    """List, show, check, compare and merge tuned launch parameters."""


@tuned.command("list")
@click.option("--device", help="Only this device's entries.")
@click.option("--mode", help="Only this KV quantization mode's entries.")
@click.option("--op", type=_OPS, help="Only entries of this op.")
@click.option("--head-size", type=click.IntRange(1), help="Only entries of this head size.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def list_(device: str | None, mode: str | None, op: str | None, head_size: int | None, as_json: bool) -> None:
    """List the tuned entries, with their times and whether select uses them here.

    Where there is nothing of what was asked for, the nearest entries are named, and the command that would tune it.
    """
    from kvreg.cli import tuned_documents, tuned_view
    from kvreg_tuning.filters import Filter
    from kvreg_tuning.stock import Stock

    key = resolve.resolve(device).device.key if device is not None else None
    asked = Filter(key, asking.parse_mode(mode), Op(op) if op is not None else None, head_size)
    stock = Stock.open()
    _warn(stock.faults)
    if as_json:
        render.document(tuned_documents.listing(stock, asked))
    else:
        tuned_view.listing(stock, asked)


@tuned.command()
@click.option("--device", help="Key, name, arch or PCI id. Default: KVREG_DEVICE, else this machine's card.")
@click.option("--mode", required=True, help="The KV quantization mode.")
@click.option("--head-size", type=click.IntRange(1), required=True, help="Channels of a head.")
@click.option("--op", type=_OPS, help="Only this op. Default: every op.")
@click.option("--variant", help="Only this variant (NAME or NAME@VERSION). Default: every variant of the op.")
@click.option("--q-heads", type=int, help="Query heads. Default: 32.")
@click.option("--kv-heads", type=int, help="KV heads. Default: 8.")
@click.option("--page", type=int, help="Token slots of a cache page. Default: 16.")
@click.option("--dtype", help="The model's dtype. Default: bf16.")
@click.option("--feature", "features", multiple=True, help="What attention must do; may be repeated. Default: causal.")
@click.option("--batch", type=int, help="Sequences of a step. Default: 32.")
@click.option("--context", type=int, help="Tokens of a sequence. Default: 8192.")
@click.option("--layout", help="Layout id of the cache. Default: the mode's, planar.2 of int4, else planar.1.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def show(
    device: str | None,
    mode: str,
    head_size: int,
    op: str | None,
    variant: str | None,
    features: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> int:
    """Show the entry that serves a request, in full, and every other one with the reason why it does not.

    Where none does, it says what was looked for, which entries come nearest and what differs in each, and the command
    that would tune it. Ends with 4 when no variant of an op has an entry, and with 3 for a head size that none takes.
    """
    from kvreg.cli import tuned_documents, tuned_view
    from kvreg_tuning.serving import served
    from kvreg_tuning.stock import Stock

    wanted = asking.parse_mode(mode)
    if wanted is None:
        message = wrong("mode", required="one mode", found=repr(mode), remedy="`kvreg tuned list` shows every one's")
        raise UsageError(message)
    found = resolve.resolve(device) if device is not None else resolve.default_device(environment.read().device)
    request = asking.make_request(found.device.key, wanted, head_size, features=features or None, **asked)
    if variant is not None:
        require_known(found.device.key, [mode], [variant], environment.read())
    stock = Stock.open()
    _warn(stock.faults)
    ops = [Op(op)] if op is not None else list(Op)
    _require_head_size(
        request, found.device, [each for one in ops for each in stock.variants(found.device, wanted, one)]
    )
    answers = [
        each
        for one in ops
        for each in served(stock, found.device, request, wanted, one)
        if variant in (None, each.wanted.variant, each.wanted.variant.partition("@")[0])
    ]
    if as_json:
        render.document(tuned_documents.shown(found, request, answers))
    else:
        tuned_view.shown(found, request, answers)
    found_for = {each.wanted.op for each in answers if each.item is not None}
    return 0 if found_for == set(ops) else FINDING


@tuned.command()
@click.option("--strict", is_flag=True, help="An entry made with other versions is a finding too.")
@click.option(
    "--compile",
    "compiles",
    is_flag=True,
    help="Compile what another Triton was tuned with, and find what no longer fits its card; needs torch and Triton.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(strict: bool, compiles: bool, as_json: bool) -> int:
    """Check every tuned file: what cannot be read, what is never used and why, each with its remedy.

    Ends with 4 when there is a finding. An entry made with another Triton, torch or driver is used all the same, so it
    is one with --strict only; --compile says whether it still fits, a second or two each.
    """
    from kvreg.cli import tuned_documents, tuned_view
    from kvreg_tuning.checking import findings
    from kvreg_tuning.stock import Stock

    if compiles:
        with extras.kernels("tuned check --compile"):
            from kvreg.validation.tuned_resources import misfits, of_another_triton
    stock = Stock.open()
    found = list(findings(stock))
    if compiles:
        found += misfits(stock, of_another_triton(stock), environment.read().home)
    if as_json:
        render.document(tuned_documents.checked(stock, found))
    else:
        tuned_view.checked(stock, found)
    return FINDING if any(strict or not each.is_soft for each in found) else 0


@tuned.command()
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def diff(first: Path, second: Path, as_json: bool) -> int:
    """Compare two tuned files of one device entry by entry; ends with 4 when they differ."""
    from kvreg.cli import tuned_documents, tuned_view
    from kvreg_tuning.differences import pairs

    contents = [_read(path) for path in (first, second)]
    _of_one_device((first, second), contents, "compare")
    differing = pairs(contents[0].entries, contents[1].entries)
    if as_json:
        render.document(tuned_documents.compared(first, second, differing))
    else:
        tuned_view.compared(first, second, differing)
    return FINDING if differing else 0


@tuned.command()
@click.argument("sources", type=_FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--into",
    type=OutputFile(makes_folder=True),
    required=True,
    help="The file that takes the entries; it need not exist.",
)
@click.option("--dry-run", is_flag=True, help="Say what would become of each entry, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def merge(sources: tuple[Path, ...], into: Path, dry_run: bool, as_json: bool) -> int:
    """Take the entries of tuned files of one device into another file of it.

    Of two entries for one thing stays, by the first rule that tells them apart: the one that can be launched, the one
    of the kernel that is installed, the measured one, the faster one (against the default of its own run, else by its
    time), the newer one, the one that --into had. Ends with 4 when something in a file could not be read; the rest is
    merged. A broken tuned file at --into is kept under another name; a file of another kind there ends with 2.
    """
    from kvreg.cli import tuned_documents, tuned_view
    from kvreg.core.tuned_salvage import looks_tuned
    from kvreg_tuning.differences import by_merit, fold
    from kvreg_tuning.stock import Stock
    from kvreg_tuning.store import merge as write

    contents = [_read(path) for path in sources]
    device = _of_one_device(sources, contents, "merge")
    if into.is_file() and not looks_tuned(into):  # a mistyped name: a broken tuned file alone is set aside
        remedy = "name another, or move that one away"
        raise UsageError(
            wrong(f"--into {into}", required="a tuned file or a new name", found="another file", remedy=remedy)
        )
    stock = Stock.open()
    _require_own_file(stock, into, device)
    card = stock.device(device)
    judge = by_merit(
        lambda variant: stock.kernel_hash(card, variant) if card is not None else None,
        lambda entry: stock.fault(card, entry) if card is not None else None,
    )
    entries = fold([each.entries for each in contents], judge)
    report = write(into, device, contents[0].environment, entries, judge=judge, dry_run=dry_run)
    if as_json:
        render.document(tuned_documents.merged(report, device, dry_run))
    else:
        tuned_view.merged(report, dry_run)
    return FINDING if report.faults or any(each.faults for each in contents) else 0


def _require_own_file(stock: Stock, into: Path, device: str) -> None:
    """Raise UsageError for a target that holds another device's entries, or has the name of another device's file."""
    from kvreg.core.tuned import file_name
    from kvreg.core.tuned_files import read

    found = device
    if into.is_file():
        with contextlib.suppress(KvregError):  # a broken one is set aside
            found = _key_of(read(into).device)
    named = next((each.key for each in stock.index.devices() if into.name == file_name(each.key)), device)
    other = found if found != device else named
    if other != device:
        remedy = f"merge each device by itself, {device} into {file_name(device)}"
        raise UsageError(
            wrong(f"--into {into}", required=f"a file of {device}", found=f"that of {other}", remedy=remedy)
        )


def _read(path: Path) -> Contents:
    """Read a file that was named; what is left out of it is a warning each."""
    from kvreg.core.tuned_files import read

    contents = read(path)
    for fault in contents.faults:
        notices.warn(fault)
    return contents


def _require_head_size(request: Request, device: Device, variants: Sequence[Variant]) -> None:
    """Raise Refused, as select does, for a head size that no variant takes: nothing could tune it."""
    reasons = [
        [reason for reason in constraints.failed(each, request, device) if reason.code == "head_size"]
        for each in variants
    ]
    if reasons and all(reasons):
        raise Refused(f"{request.mode} on {device.key}: {reasons[0][0]}")


def _of_one_device(paths: Sequence[Path], contents: Sequence[Contents], verb: str) -> str:
    """Return the key of the device of some tuned files; raises UsageError where they are of several."""
    keys = [_key_of(each.device) for each in contents]
    for path, key in zip(paths, keys, strict=True):
        if key != keys[0]:
            remedy = f"{verb} each device by itself"
            raise UsageError(wrong(str(path), required=f"entries of {keys[0]}", found=key, remedy=remedy))
    return keys[0]


def _key_of(name: str) -> str:
    """Return what a tuned file calls its device as a key, or as it is where nobody knows it."""
    try:
        return resolve.resolve(name).device.key
    except UnknownDevice:
        return name


def _warn(faults: Iterable[Fault]) -> None:
    """Name what the listed entries are not all of."""
    for fault in faults:
        notices.warn(fault.problem)
