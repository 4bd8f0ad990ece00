"""Reads devices.yaml into Devices: the cards, their sub-models, and one arch device for each architecture.

YAML and pydantic load only when a file is really read; a warm `kvreg` reads the JSON index instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.core import schema_faults
from kvreg.core.devices import ARCH_PREFIX, Device
from kvreg.core.errors import BadFile, wrong
from kvreg.core.near import suggestion

if TYPE_CHECKING:
    from pydantic import ValidationError

    from kvreg.core.device_schema import Arch, Card, DeviceFile, Override, SubModel

_IN_DEVICE = {one.name for one in fields(Device)}
_APART = {"src", "variants", "per_device", "notes"}
_PEAKS = {
    "bf16": "dense_tflops",
    "fp16": "dense_tflops",
    "fp8": "dense_tflops",
    "int8": "dense_tops",
    "int4": "dense_tops",
}
_OF_ARCH = (
    "bf16_native",
    "fp8_native",
    "fp8_triton",
    "shared_per_block_max_bytes",
    "warp_sizes",
)
"""Fields of Device that belong to an architecture, hence to every card of it."""
_FACTS_OF_ARCH = (
    "compute_capability",
    "dpas_exec_size",
    "fp4_native",
    "int4_tensor",
    "matrix_kind",
    "matrix_kind_hw",
    "max_threads_per_block",
    "ocloc_device",
    "registers_per_thread_max",
)


def devices() -> tuple[Device, ...]:
    """Return the devices of every backend, arch devices included; the derived index gives them without YAML."""
    from kvreg.core import index  # it loads the backends, which read their files through this module

    return index.devices()


def read(path: Path) -> tuple[Device, ...]:
    """Return the devices of one file: cards, sub-models after their card, arch devices last.

    Raises BadFile, naming the file, the entry and the nearest valid key, for anything that is not in the schema.
    """
    return _devices(path, _parsed(path))


def _parsed(path: Path) -> DeviceFile:
    # Both imports cost 100 ms together, which a start from the index must not pay.
    from pydantic import ValidationError

    from kvreg.core.device_schema import DeviceFile
    from kvreg.core.yaml_files import load

    document = load(path)
    try:
        parsed = DeviceFile.model_validate(document)
    except ValidationError as error:
        raise BadFile(_first_fault(path, document, error)) from None
    named = [(card.key, card.src) for card in parsed.devices]
    named += [(sub.name, sub.src) for card in parsed.devices for sub in card.variants.values()]
    named += [(arch.arch, arch.src) for arch in parsed.archs]
    for name, src in named:
        for group, keys in src.items():
            for key in keys:
                if key not in parsed.sources:
                    raise BadFile(
                        wrong(
                            f"{path}: {name}: src.{group}",
                            required="keys of `sources`",
                            found=key,
                            remedy=suggestion(key, parsed.sources),
                        )
                    )
    for card in parsed.devices:
        if card.platform != parsed.platform:
            raise BadFile(
                wrong(
                    f"{path}: {card.key}: platform",
                    required=parsed.platform,
                    found=card.platform,
                    remedy="move the card to its platform's file",
                )
            )
    return parsed


def _first_fault(path: Path, document: Any, error: ValidationError) -> str:
    from kvreg.core.device_schema import valid_keys

    fault = schema_faults.first(error, valid_keys)
    where = f"{path}: {_words(document, fault.place[:-1])}{fault.place[-1] if fault.place else 'file'}"
    return wrong(where, required=fault.required, found=fault.found, remedy=fault.remedy or "correct the file")


def _words(document: Any, location: Sequence[int | str]) -> str:
    """Name an entry as a reader of the file would: `h200: variants.nvl: `, not `devices.15`."""
    words: list[str] = []
    here = document
    for part in location:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            continue  # pydantic also names members of unions, which are not in the file
        if isinstance(part, int) and isinstance(here, Mapping):
            words = [str(here.get("key") or here.get("arch") or f"entry {part + 1}") + ":"]
        else:
            words.append(str(part))
    return ".".join(words).replace(":.", ": ").rstrip(":") + (": " if words else "")


def _devices(path: Path, parsed: DeviceFile) -> tuple[Device, ...]:
    texts = {key: source.model_dump() for key, source in parsed.sources.items()}
    cards: list[Device] = []
    for card in parsed.devices:
        device = _card(card, texts)
        cards.append(device)
        cards.extend(_sub_model(device, name, sub, texts) for name, sub in card.variants.items())
    known = {device.key for device in cards}
    if len(known) != len(cards):
        keys = [device.key for device in cards]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadFile(f"{path}: {twice}: required a key of its own, found it twice; rename one of the two")
    return (*cards, *_arch_devices(parsed, cards, texts))


def _sources(src: Mapping[str, Sequence[str]], texts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {group: [{"key": key, **texts[key]} for key in keys] for group, keys in src.items()}


def _card(card: Card, texts: Mapping[str, Mapping[str, str]]) -> Device:
    stated = card.model_dump(exclude_unset=True)
    own = {name: _tuple(value) for name, value in stated.items() if name in _IN_DEVICE and name not in _APART}
    facts = {name: value for name, value in stated.items() if name not in _IN_DEVICE | _APART}
    own.setdefault("compute_units", None)
    device = Device(**own, facts=facts, sources=_sources(card.src, texts), notes=tuple(card.notes))
    if card.per_device is None:
        return device
    # What torch shows, and what a kernel is launched on, is one die of the package.
    one = _overridden(device, card.per_device)
    package = {name: stated.get(name) for name in _stated(card.per_device) if name not in _PEAKS}
    package |= {name: stated.get(name) for name in ("dense_tflops", "dense_tops")}
    note = "Figures are those of one torch device (one die); `package` holds those of the whole card."
    return replace(one, facts={**one.facts, "package": package}, notes=(*one.notes, note))


def _sub_model(parent: Device, name: str, sub: SubModel, texts: Mapping[str, Mapping[str, str]]) -> Device:
    derived = _overridden(parent, sub)
    stated = sub.model_fields_set
    facts = {key: value for key, value in derived.facts.items() if key != "mig_slices"}
    return replace(
        derived,
        key=f"{parent.key}-{name}",
        name=sub.name,
        parent=parent.key,
        aliases=tuple(sub.aliases),
        typed_aliases=tuple(sub.typed_aliases),
        pci_ids=tuple(sub.pci_ids),
        # MIG profiles carry the size of a memory slice, so another memory has other profiles.
        mig_profiles=() if "memory_gb" in stated else parent.mig_profiles,
        facts=facts,
        sources={**parent.sources, **_sources(sub.src, texts)},
        notes=tuple(sub.notes),
    )


def _overridden(device: Device, override: Override) -> Device:
    """Return `device` with what `override` states; a stated peak makes the peaks it leaves out unknown."""
    stated = _stated(override)
    facts = dict(device.facts)
    if "eu_count" in stated:
        facts["eu_count"] = stated["eu_count"]
    if any(name in stated for name in _PEAKS):
        for name, table in _PEAKS.items():
            facts[table] = {**(facts.get(table) or {}), name: stated.get(name)}
        facts["dense_fp4_tflops"] = None
    plain = {name: value for name, value in stated.items() if name in _IN_DEVICE}
    return replace(device, **plain, facts=facts)


def _stated(override: Override) -> dict[str, Any]:
    """Return the facts that an override states, nulls included, in the schema's order."""
    from kvreg.core.device_schema import Override

    return {name: getattr(override, name) for name in Override.model_fields if name in override.model_fields_set}


def _arch_devices(
    parsed: DeviceFile, cards: Sequence[Device], texts: Mapping[str, Mapping[str, str]]
) -> Iterable[Device]:
    listed = {entry.arch: entry for entry in parsed.archs}
    for arch in dict.fromkeys([*(card.arch for card in cards), *listed]):
        if arch == parsed.platform:
            continue  # the cpu is one device, not a family of cards
        yield _arch_device(
            parsed.platform, arch, [card for card in cards if card.arch == arch], listed.get(arch), texts
        )


def _arch_device(
    platform: str, arch: str, cards: Sequence[Device], entry: Arch | None, texts: Mapping[str, Mapping[str, str]]
) -> Device:
    """Return what all cards of an architecture have in common, or what the file says of it where it has none."""
    own: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    if cards:
        own = {name: getattr(cards[0], name) for name in _OF_ARCH if len({getattr(c, name) for c in cards}) == 1}
        facts = {
            name: cards[0].facts[name]
            for name in _FACTS_OF_ARCH
            if name in cards[0].facts and len({str(card.facts.get(name)) for card in cards}) == 1
        }
    elif entry is not None:
        own = {name: _tuple(getattr(entry, name)) for name in _OF_ARCH}
        sources = _sources(entry.src, texts)
    return Device(
        key=f"{ARCH_PREFIX}{arch}",
        name=f"any {arch} card",
        platform=platform,
        arch=arch,
        compute_units=None,
        aliases=tuple(entry.aliases) if entry else (),
        facts=facts,
        sources=sources,
        notes=tuple(entry.notes) if entry else (),
        **own,
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
