"""Where tests run: the card that was named or is here, its memory and driver, and the versions beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

from kvreg.core import device_files, installed, probing, registry, resolve
from kvreg.core.backends import Detected
from kvreg.core.devices import Device
from kvreg.core.errors import DeviceUnavailable, UsageError, wrong
from kvreg.core.expectations.predicates import Where

GIB = 1 << 30
CPU = "cpu"
"""Platform and device that every machine has."""


def where(platform: str | None = None, device: str | None = None) -> Where:
    """Return the place that is named, else this machine's first card (KVREG_DEVICE goes before it), else its cpu.

    A platform alone takes this machine's first card of it; without one, what depends on the card stays unknown.
    Memory and driver are known where the card is here. Raises UnknownDevice, and UsageError for a device of another
    platform or a platform that no backend has.
    """
    here = cards()
    if device is not None:
        found = resolve.resolve(device).device
        if platform not in (None, found.platform):
            raise UsageError(
                wrong(
                    f"device {found.key}",
                    required=f"one of platform {platform}",
                    found=found.platform,
                    remedy="name either of them",
                )
            )
        return _place(found, here)
    if platform is None:
        return _place(_first(), here)
    known = sorted({each.platform for each in device_files.devices()})
    if platform not in known:
        raise UsageError(
            wrong(
                "platform",
                required=f"one of {', '.join(known)}",
                found=platform,
                remedy="`kvreg devices` lists them by platform",
            )
        )
    of_platform = [found for _, found in here if found.platform == platform]
    if platform == CPU:
        return _place(resolve.resolve(CPU).device, here)
    return _place(of_platform[0], here) if of_platform else _with_versions(Where(platform=platform))


def here(platform: str | None = None, device: str | None = None) -> Where:
    """Return the place that is named, which must be this machine; raises DeviceUnavailable where it is another's.

    What a test does on one card says nothing about another, so no machine may answer for a card that it has not.
    """
    found = where(platform, device)
    present = [each.key for _, each in cards()]
    if found.device in (CPU, *present):
        return found
    raise DeviceUnavailable(
        wrong(
            found.device or f"platform {platform}",
            required="a card of this machine",
            found=", ".join(present) or CPU,
            remedy="run this where that card is; a result from another says nothing about it",
        )
    )


def cards() -> list[tuple[Detected, Device]]:
    """Return the cards of this machine that kvreg knows."""
    devices = device_files.devices()
    served = ((card, resolve.resolve_card(card, devices)) for card in registry.detect())
    return [(card, found.device) for card, found in served if found is not None]


def day(text: str | None, beside: Path) -> date:
    """Return the day that expiry is judged on: the one given, else the date of the commit, else today.

    `beside`: a file of the checkout. Raises UsageError for a text that is no date.
    """
    if text is not None:
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise UsageError(
                wrong("--kvreg-as-of", required="a date (YYYY-MM-DD)", found=text, remedy="correct it")
            ) from None
    folder = str(beside.resolve().parent)
    committed = probing.output_of(["git", "-C", folder, "log", "-1", "--format=%cs"])
    try:
        return date.fromisoformat((committed or "").strip())
    except ValueError:
        return datetime.now(UTC).date()


def _first() -> Device:
    try:
        return resolve.default_device().device
    except DeviceUnavailable:
        return resolve.resolve(CPU).device


def _place(device: Device, here: list[tuple[Detected, Device]]) -> Where:
    card = next((card for card, found in here if found.key == device.key), None)
    memory = card.memory_bytes if card is not None else None
    return _with_versions(
        Where(
            platform=device.platform,
            arch=device.arch,
            device=device.key,
            memory_gib=memory / GIB if memory is not None else None,
            driver=card.driver if card is not None else None,
        )
    )


def _with_versions(place: Where) -> Where:
    found = installed.versions(("triton", "torch"))
    return replace(place, triton=found.get("triton"), torch=found.get("torch"))
