"""NVIDIA cards of this machine as nvidia-smi names them; torch is not asked, since it may not be there."""

from __future__ import annotations

import os
import re

from kvreg.core.backends import Detected
from kvreg.core.probing import output_of, visible

FIELDS = ("name", "compute_cap", "pci.device_id", "memory.total", "driver_version", "mig.mode.current")
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
LIST = ("nvidia-smi", "-L")

_GPU_LINE = re.compile(r"GPU (?P<index>\d+):")
_MIG_LINE = re.compile(r"\s+MIG (?P<profile>\S+)\s+Device")


def cards() -> list[Detected]:
    """Return the cards that CUDA_VISIBLE_DEVICES leaves; none without a driver. MIG slices stand for their card."""
    found = parse(output_of(QUERY) or "")
    if any(mig for _, mig in found):
        # Only the list names the slices, and only they can be computed on.
        return with_slices(found, output_of(LIST) or "")
    return visible([card for card, _ in found], ("CUDA_VISIBLE_DEVICES",), os.environ)


def parse(text: str) -> list[tuple[Detected, bool]]:
    """Return (card, MIG is on) for each line of QUERY's output; lines of another form are left out.

    `[N/A]` and `[Not Supported]` are unknown: a GB10 with unified memory reports its memory so.
    """
    found: list[tuple[Detected, bool]] = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS):
            continue
        name, capability, pci, memory, driver, mig = (None if value.startswith("[") else value for value in values)
        if name is None:
            continue
        digits = (capability or "").replace(".", "")
        card = Detected(
            platform="cuda",
            name=name,
            arch=f"sm_{digits}" if digits.isdigit() else None,
            # The device is the upper half, the vendor (10DE) the lower: 0x233510DE.
            pci_id=f"0x{pci[2:6].lower()}" if pci and len(pci) == 10 else None,
            memory_bytes=int(memory) << 20 if memory and memory.isdigit() else None,
            driver=driver,
            index=len(found),
        )
        found.append((card, mig == "Enabled"))
    return found


def with_slices(found: list[tuple[Detected, bool]], listing: str) -> list[Detected]:
    """Return the cards of `found`, those with MIG on replaced by the slices that `nvidia-smi -L` lists below them."""
    profiles: dict[int, list[str]] = {}
    gpu = -1
    for line in listing.splitlines():
        if head := _GPU_LINE.match(line):
            gpu = int(head["index"])
        elif slice_ := _MIG_LINE.match(line):
            profiles.setdefault(gpu, []).append(slice_["profile"])
    result: list[Detected] = []
    for card, mig in found:
        names = [f"{card.name} MIG {profile}" for profile in profiles.get(card.index, ())] if mig else [card.name]
        for name in names:
            memory = None if mig else card.memory_bytes
            result.append(Detected("cuda", name, card.arch, card.pci_id, None, memory, card.driver, index=len(result)))
    return result
