"""One identity function for every part: from any text or detected card to a device, and by which rule.

Names compare normalised: case, `_`, runs of spaces, `(R)`, `(TM)` and a leading vendor word do not count. The rules,
in their order: key, architecture, MIG name, marketing name or alias (torch's names and vLLM's file names), typed
alias, PCI id. An architecture comes before typed aliases, so that `bmg` is any Battlemage card and not a B580. A name
matches whole or not at all: `RTX 4090 D` is no RTX 4090 and `A10G` no A10; such near misses are candidates only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvreg.core import device_files, environment, notices, registry
from kvreg.core.backends import Detected
from kvreg.core.devices import ARCH_PREFIX, Device, Resolution
from kvreg.core.errors import DeviceUnavailable, UnknownDevice, shown, wrong
from kvreg.core.near import nearest

_VENDOR_WORDS = ("nvidia", "amd", "intel")
_VENDOR_IDS = {"cuda": "10de", "rocm": "1002", "xpu": "8086"}
_SM = re.compile(r"sm[_-]?(?P<number>\d+)[af]?")
_GFX = re.compile(r"(?P<arch>gfx[0-9a-f]+)(:(sramecc|xnack)[+-])*")
_ARCH_LIKE = re.compile(r"sm[_-]?\d.*|gfx\d.*|arch:.*")
_MIG = re.compile(r"(?P<base>.+?)(?: mig |/mig-)(?P<profile>\S+)")
_MIG_PROFILE = re.compile(r"(?P<compute>\d+)g\.(?P<memory>\d+)gb(?P<extra>\+[a-z.]+)?")
_PCI = re.compile(r"(?:(?P<vendor>[0-9a-f]{4}):)?(?P<prefix>0x)?(?P<id>[0-9a-f]{4})")
_WHOLE_CARD_FACTS = ("dense_tflops", "dense_tops", "dense_fp4_tflops", "mig_slices", "package")
_CANDIDATES = 3
_ALIKE = 0.7
"""difflib ratio from which a name is a near miss: `mi300` of mi300x is 0.91, `b70` of b580 0.57."""


def resolve(text: str) -> Resolution:
    """Return the device that `text` names; raises UnknownDevice, with near misses where it reads like a name."""
    return resolve_among(text, device_files.devices())


def resolve_among(text: str, devices: Sequence[Device]) -> Resolution:
    """Return the device of `devices` that `text` names; see `resolve`."""
    if not isinstance(text, str):
        required = "the text of a key, name, PCI id or architecture"
        raise UnknownDevice(
            wrong("device", required=required, found=shown(text), remedy="`kvreg devices` lists those that are known")
        )
    table = _Table.of(devices)
    wanted = text.strip().lower()
    found = (
        _by_key(wanted, table)
        or _by_arch(text, wanted, table)
        or _by_mig(text, table)
        or _by_name(text, table)
        or _by_pci(wanted, table)
    )
    if found is None:
        raise _unknown(text, table)
    return found


def resolve_card(card: Detected, devices: Sequence[Device]) -> Resolution | None:
    """Return the device of a card found on a machine; None when neither its name nor its architecture is known.

    The architecture that the driver reports goes before the name, which only picks facts and tuned entries: a card
    of an unknown name, or of a name that belongs to another architecture, is served from its architecture.
    """
    table = _Table.of(devices)
    by_name = by_pci = None
    try:
        by_name = _by_mig(card.name, table) or _by_name(card.name, table)
    except UnknownDevice as error:
        notices.debug(str(error))  # a MIG profile that is not in the facts; the architecture serves
    if card.pci_id:
        by_pci = _by_pci(f"{_VENDOR_IDS.get(card.platform, '')}:{card.pci_id}".strip(":").lower(), table)
    # A virtual function carries its card's name, but an id of its own.
    sub_model = by_pci is not None and (by_name is None or by_pci.device.parent == by_name.device.key)
    found = by_pci if sub_model else by_name
    by_arch = _arch(card.arch.lower(), table) if card.arch else None
    if found is not None and (by_arch is None or found.device.arch == by_arch.arch):
        return replace(found, device=_measured(found.device, card), notes=(*found.notes, *_disagreement(found, card)))
    if by_arch is None:
        return None
    why = f"is {found.device.key}, whose architecture differs" if found else "is not in the device files"
    note = f"{card.name} {why}; served from its architecture {by_arch.arch}"
    return Resolution(_measured(replace(by_arch, name=card.name), card), "arch", (note,))


def default_device(asked: str | None = None) -> Resolution:
    """Return the device to serve when a caller names none: KVREG_DEVICE (`asked`), else this machine's first card.

    Raises UnknownDevice for a wrong KVREG_DEVICE and DeviceUnavailable where there is no card.
    """
    asked = asked if asked is not None else environment.read().device
    if asked:
        return of_environment(asked)
    cards = registry.detect()
    devices = device_files.devices()
    served = [(card, found) for card in cards if (found := resolve_card(card, devices)) is not None]
    if not served:
        seen = ", ".join(card.name for card in cards) or "none"
        raise DeviceUnavailable(
            f"device: required a card that kvreg knows, found {seen}; name one with --device or KVREG_DEVICE"
            " (`kvreg devices` lists them)"
        )
    _, first = served[0]
    others = sorted({found.device.key for _, found in served} - {first.device.key})
    if not others:
        return first
    note = f"this machine also has {', '.join(others)}; --device or KVREG_DEVICE takes another"
    return replace(first, notes=(*first.notes, note))


def of_environment(text: str) -> Resolution:
    """Return the device that KVREG_DEVICE names as `text`; raises UnknownDevice, naming the variable."""
    try:
        return resolve(text)
    except UnknownDevice as error:
        raise UnknownDevice(f"KVREG_DEVICE: {error.message}", candidates=error.candidates) from None


def normalise(name: str) -> str:
    """Return a name as it compares: NVIDIA_H200, `nvidia  h200` and H200 are one."""
    text = name.lower().replace("(r)", "").replace("(tm)", "").replace("_", " ")
    words = text.split()
    if len(words) > 1 and words[0] in _VENDOR_WORDS:
        words = words[1:]
    return " ".join(words)


def _compact(name: str) -> str:
    return normalise(name).replace(" ", "").replace("-", "")


@dataclass(slots=True)
class _Table:
    """Devices by each kind of identity."""

    keys: dict[str, Device] = field(default_factory=dict)
    archs: dict[str, Device] = field(default_factory=dict)
    names: dict[str, tuple[Device, str]] = field(default_factory=dict)
    compact: dict[str, tuple[Device, str]] = field(default_factory=dict)
    pci: dict[str, Device] = field(default_factory=dict)

    @classmethod
    def of(cls, devices: Sequence[Device]) -> _Table:
        table = cls()
        for device in devices:
            table._add(device)
        return table

    def _add(self, device: Device) -> None:
        self.keys.setdefault(device.key, device)
        if device.is_arch:
            for word in (device.arch, *device.aliases):
                self.archs.setdefault(_compact(word), device)
            return
        derived = "variant" if device.parent else ""
        for name, rule in (
            (device.name, derived or "name"),
            *((alias, derived or "alias") for alias in device.aliases),
            *((alias, "typed_alias") for alias in device.typed_aliases),
            (device.key, derived or "key"),
        ):
            self.names.setdefault(normalise(name), (device, rule))
            self.compact.setdefault(_compact(name), (device, rule))
        for pci_id in device.pci_ids:
            self.pci.setdefault(pci_id.lower().removeprefix("0x"), device)


def _by_key(wanted: str, table: _Table) -> Resolution | None:
    device = table.keys.get(wanted)
    return Resolution(device, "key") if device and not device.is_arch else None


def _arch(wanted: str, table: _Table) -> Device | None:
    """Return the arch device of sm_90, sm90, sm_90a, gfx942:sramecc+:xnack-, bmg or arch:bmg."""
    bare = wanted.removeprefix(ARCH_PREFIX)
    if sm := _SM.fullmatch(bare):
        bare = f"sm{sm['number']}"
    elif gfx := _GFX.fullmatch(bare):
        bare = gfx["arch"]
    return table.archs.get(_compact(bare))


def _by_arch(text: str, wanted: str, table: _Table) -> Resolution | None:
    device = _arch(wanted, table)
    if device is not None:
        return Resolution(device, "arch", (f"{device.name}: its compute units are unknown",))
    if not _ARCH_LIKE.fullmatch(wanted):
        return None
    start = wanted.removeprefix(ARCH_PREFIX)[:2]
    known = dict.fromkeys(one.arch for one in table.archs.values())
    kin = [arch for arch in known if arch.startswith(start)] or list(known)
    raise UnknownDevice(
        f"device {text!r}: required an architecture that kvreg knows, found none of that name;"
        f" known: {', '.join(sorted(kin, key=lambda arch: (len(arch), arch)))}"
    )


def _by_name(text: str, table: _Table) -> Resolution | None:
    found = table.names.get(normalise(text)) or table.compact.get(_compact(text))
    if found is None:
        return None
    device, rule = found
    # vLLM's tuned files spell a name with underscores for spaces.
    if rule in ("name", "alias") and "_" in text:
        rule = "file_name"
    return Resolution(device, rule)


def _by_pci(wanted: str, table: _Table) -> Resolution | None:
    match = _PCI.fullmatch(wanted)
    device = table.pci.get(match["id"]) if match else None
    if match is None or device is None:
        return None
    if match["vendor"] and match["vendor"] != _VENDOR_IDS.get(device.platform, match["vendor"]):
        return None
    return Resolution(device, "pci_id")


def _by_mig(text: str, table: _Table) -> Resolution | None:
    match = _MIG.fullmatch(" ".join(text.strip().lower().replace("_", " ").split()))
    if match is None:
        return None
    base = _by_key(match["base"], table) or _by_name(match["base"], table)
    if base is None:
        raise _unknown(text, table, like=match["base"])
    return _slice(text, base.device, match["profile"])


def _slice(text: str, card: Device, profile: str) -> Resolution:
    shape = _MIG_PROFILE.fullmatch(profile)
    if card.has_mig is False or shape is None or (card.mig_profiles and profile not in card.mig_profiles):
        near = (*nearest(profile, card.mig_profiles, count=_CANDIDATES), *card.mig_profiles)
        candidates = tuple(dict.fromkeys(f"{card.key}/mig-{one}" for one in near))
        required = f"one of {', '.join(card.mig_profiles)}" if card.mig_profiles else "a card with MIG profiles"
        found = profile if shape is None or card.mig_profiles else f"{card.key}, which has none"
        raise UnknownDevice(
            f"device {text!r}: MIG profile: required {required}, found {found};"
            f" take {candidates[0] if candidates else f'the whole card, {card.key}'}",
            candidates=candidates,
        )
    seen = (card.facts.get("mig_slices") or {}).get(profile) or {}
    device = replace(
        card,
        key=f"{card.key}/mig-{profile}",
        name=f"{card.name} MIG {profile}",
        parent=card.key,
        compute_units=seen.get("compute_units"),
        memory_gb=int(shape["memory"]),
        memory_bandwidth_gbs=None,
        l2_bytes=None,
        aliases=(),
        typed_aliases=(),
        pci_ids=(),
        mig_profiles=(),
        facts={**{k: v for k, v in card.facts.items() if k not in _WHOLE_CARD_FACTS}, "mig_slice": dict(seen)},
        sources={**card.sources, **{group: card.sources.get("mig", ()) for group in ("compute_units", "memory")}},
        notes=(),
    )
    units = "unknown" if device.compute_units is None else str(device.compute_units)
    notes = [f"a MIG slice of {card.key}: limits for each block are the card's, its compute units are {units}"]
    if not card.mig_profiles:
        notes.append(f"the profiles of {card.key} are not in the device files; {profile} is taken as given")
    return Resolution(device, "mig", tuple(notes))


def _measured(device: Device, card: Detected) -> Device:
    """Take the compute units that the machine shows: partitions and virtual functions own fewer than the card."""
    return replace(device, compute_units=card.compute_units or device.compute_units)


def _disagreement(found: Resolution, card: Detected) -> tuple[str, ...]:
    expected = found.device.compute_units
    if card.compute_units is None or expected in (None, card.compute_units):
        return ()
    return (f"this card shows {card.compute_units} compute units, {found.device.key} has {expected}",)


def _unknown(text: str, table: _Table, like: str | None = None) -> UnknownDevice:
    wanted = normalise(like or text)
    candidates: tuple[str, ...] = ()
    # Ids and architectures that are one digit off are other hardware, so only names get near misses.
    if not (wanted.startswith("0x") or re.fullmatch(r"[0-9a-f]{4}:.*", wanted)):
        near = nearest(wanted, table.names, count=4 * _CANDIDATES, cutoff=_ALIKE)
        candidates = tuple(dict.fromkeys(table.names[name][0].key for name in near))[:_CANDIDATES]
    remedy = f"did you mean {' or '.join(candidates)}?" if candidates else "`kvreg devices` lists them"
    return UnknownDevice(
        f"device {text!r}: required a key, name, PCI id or architecture that kvreg knows, found no match; {remedy}",
        candidates=candidates,
    )
