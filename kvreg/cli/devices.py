"""`kvreg devices [KEY]`: every card by platform, or one with the source of each fact."""

from __future__ import annotations

from typing import Any

import click

from kvreg.cli import render
from kvreg.cli.once import Command
from kvreg.core import device_files, resolve
from kvreg.core.devices import Device, Resolution

_LIMITS = ("shared", "limits")
_GROUPS: dict[str, tuple[str, ...]] = {
    "arch": ("arch",),
    "compute_units": ("compute_units", "limits"),
    "eu_count": ("compute_units",),
    "memory_gb": ("memory",),
    "memory_bandwidth_gbs": ("memory",),
    "l2_bytes": ("l2",),
    "mall_bytes": ("l2",),
    "dense_tflops": ("tflops",),
    "dense_tops": ("int8", "tflops"),
    "dense_fp4_tflops": ("fp4", "tflops"),
    "fp8_native": ("fp8_native",),
    "fp8_triton": ("fp8_triton", "matrix_kind"),
    "warp_sizes": ("warp_sizes", "limits"),
    "matrix_kind": ("matrix_kind",),
    "matrix_kind_hw": ("matrix_kind",),
    "dpas_exec_size": ("matrix_kind",),
    "tensor_memory_per_cu_bytes": ("tmem",),
    "grf_per_thread": ("grf",),
    "registers_per_thread_max": ("registers_per_thread_max", "grf", "limits"),
    "aliases": ("aliases",),
    "pci_ids": ("pci_ids", "aliases"),
    "mig_profiles": ("mig",),
    "mig_slices": ("mig",),
    "mig_slice": ("mig",),
    "package": ("compute_units", "memory"),
    **dict.fromkeys(
        (
            "shared_per_block_default_bytes",
            "shared_per_block_max_bytes",
            "shared_per_cu_bytes",
            "registers_per_cu",
            "vgpr_file_kib",
            "max_threads_per_block",
            "max_threads_per_cu",
            "max_warps_per_cu",
            "max_blocks_per_cu",
            "max_num_sub_groups",
        ),
        _LIMITS,
    ),
}
"""Fact -> the groups of `src` that may stand behind it; the first that a device has counts. Others have no source."""

_FIELDS = (
    "platform",
    "arch",
    "compute_units",
    "memory_gb",
    "memory_bandwidth_gbs",
    "l2_bytes",
    "shared_per_block_max_bytes",
    "warp_sizes",
    "bf16_native",
    "fp8_native",
    "fp8_triton",
    "aliases",
    "typed_aliases",
    "pci_ids",
    "mig_profiles",
    "parent",
)
_OPTIONAL = ("aliases", "typed_aliases", "pci_ids", "mig_profiles", "parent")
"""Fields whose absence tells nothing, so that it is not shown as unknown."""


@click.command(cls=Command)
@click.argument("key", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def devices(key: str | None, as_json: bool) -> None:
    """List the devices, or show the one that KEY (a key, name, PCI id or architecture) means, fact by fact."""
    if key is None:
        _all(as_json)
    else:
        _one(resolve.resolve(key), as_json)


def _all(as_json: bool) -> None:
    cards = [device for device in device_files.devices() if not device.is_arch]
    if as_json:
        render.document({"schema": 1, "devices": [_summary(device) for device in cards]})
        return
    for platform in dict.fromkeys(device.platform for device in cards):
        render.table(
            ("device", "name", "arch", "units", "memory GB", "GB/s", "parent"),
            [
                (
                    device.key,
                    device.name,
                    device.arch,
                    device.compute_units,
                    device.memory_gb,
                    device.memory_bandwidth_gbs,
                    device.parent or "-",
                )
                for device in cards
                if device.platform == platform
            ],
            title=platform,
        )
        render.line()
    render.line(
        "kvreg devices KEY shows one with its sources; kvreg select --device KEY --head-size N chooses kernels."
    )


def _summary(device: Device) -> dict[str, Any]:
    names = ("key", "name", "platform", "arch", "compute_units", "memory_gb", "memory_bandwidth_gbs", "parent")
    return {name: getattr(device, name) for name in names}


def _one(found: Resolution, as_json: bool) -> None:
    device = found.device
    if as_json:
        shown = device.to_json()
        shown["notes"] = [*found.notes, *device.notes]
        render.document({"schema": 1, "device": {"matched_by": found.matched_by, **shown}})
        return
    render.line(f"{device.key}: {device.name} (matched by {found.matched_by.replace('_', ' ')})")
    facts = {name: getattr(device, name) for name in _FIELDS if name not in _OPTIONAL or getattr(device, name)}
    facts |= {name: value for name, value in device.facts.items() if value not in ([], {})}
    rows = [(name, value, ", ".join(one["key"] for one in sources_of(device, name))) for name, value in facts.items()]
    render.line()
    render.table(("fact", "value", "source"), [(name, value, source or "-") for name, value, source in rows])
    cited = {one["key"]: one for group in device.sources.values() for one in group}
    if cited:
        render.line()
        render.table(("source", "how", "what"), [(key, one["how"], one["what"]) for key, one in sorted(cited.items())])
    for note in (*found.notes, *device.notes):
        render.line(f"note: {note}")
    render.line()
    render.line(f"kvreg select --device {device.key} --head-size 128")


def sources_of(device: Device, fact: str) -> list[dict[str, str]]:
    """Return the sources of one fact of a device; empty where the device files name none."""
    value = getattr(device, fact, None)
    if value is None:
        value = device.facts.get(fact)
    if value is None:
        return []  # nothing stands behind an unknown
    for group in _GROUPS.get(fact, ()):
        if group in device.sources:
            return list(device.sources[group])
    return []
