"""Whether entries that were tuned with another Triton still fit their card when this machine's Triton compiles them.

An entry's own resources are those of the Triton that it was tuned with. Nothing is compiled to select, so this is
asked for by `kvreg tuned check --compile`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvreg.core import installed, notices
from kvreg.core.devices import Device
from kvreg.core.errors import UsageError, wrong
from kvreg.core.tuned import command_of
from kvreg.validation.compilers import compiler_of
from kvreg_triton.cross import verdicts
from kvreg_triton.cross.launches import launches
from kvreg_triton.cross.verdicts import Fault, Limits
from kvreg_tuning.checking import Finding
from kvreg_tuning.stock import Item, Stock, request_of

TRITON_PLATFORMS = ("cuda", "rocm", "xpu")


def of_another_triton(stock: Stock) -> list[Item]:
    """Return the entries that select would use, tuned with another Triton than the one here, or an unknown one."""
    here = installed.versions(("triton",)).get("triton")
    found = []
    for item in stock.items:
        device = stock.device(item.place.device)
        if device is None or device.platform not in TRITON_PLATFORMS:
            continue
        if item.state in ("current", "other versions") and here != item.flat.environment.get("triton"):
            found.append(item)
    return found


def misfits(stock: Stock, items: Sequence[Item], home: Path) -> Iterator[Finding]:
    """Yield a finding for each entry that does not compile here, or needs more than its card has.

    Raises DeviceUnavailable where the compiler of a platform is not installed, UsageError where Triton interprets.
    """
    for item in items:
        device = stock.device(item.place.device)
        assert device is not None, "of_another_triton leaves unknown devices out"
        faults = _faults(stock, item, device, home)
        if faults:
            text = f"{item.entry}: compiled here: {'; '.join(map(str, faults))}"
            again = f"`{command_of(item.flat, device)}` finds one that fits"
            yield Finding("resources", item.place.path, text, again)


def _faults(stock: Stock, item: Item, device: Device, home: Path) -> tuple[Fault, ...]:
    backend, variant = stock.offered(device, item.entry.variant)
    compiler, target = compiler_of(device, home)
    try:
        forms = launches(variant, device, request_of(item.entry, device), item.flat.config, target)
        # Equal shares take the default parameters, whatever was tuned (kvreg.runtime.plan).
        made = [each for each in forms if not each.form.endswith("shares")]
    except Exception as error:  # Triton asserts what it thinks of a value before it compiles anything
        what = notices.one_line(str(error)) or type(error).__name__
        return (Fault("option", "launch parameters", "some that Triton takes", what),)
    if not made:
        remedy = "unset TRITON_INTERPRET, under which nothing is compiled"
        raise UsageError(wrong(str(item.entry), required="kernels to compile", found="none", remedy=remedy))
    lines = sorted({line for each in made for line in backend.validate_options(each.specialization.options)})
    if lines:
        return verdicts.option_faults(lines)
    known = replace(compiler, source=item.entry.kernel_hash, cache=home / "cache" / "compiled")
    limits = Limits(device.arch, device.shared_per_block_max_bytes)
    found: list[Fault] = []
    for index, result in known.run([each.specialization for each in made]):
        declares = variant.matrix_instruction and not made[index].reduces
        found += verdicts.faults(made[index].form, result, limits, matrix=declares)
    return tuple(dict.fromkeys(found))
