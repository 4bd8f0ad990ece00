"""Intel cards of this machine as the xe and i915 drivers show them under /sys; no Level Zero is needed."""

from __future__ import annotations

from pathlib import Path

from kvreg.core.backends import Detected
from kvreg.core.probing import entries, text_of

_INTEL = "0x8086"


def cards(sys: Path = Path("/sys")) -> list[Detected]:
    """Return the Intel GPUs of the direct rendering manager; the name is the one that a driver without names gives."""
    found: list[Detected] = []
    for card in entries(sys / "class/drm", "card[0-9]*"):
        # card0-HDMI-A-1 is a connector of card0.
        if "-" in card.name or text_of(card / "device/vendor") != _INTEL:
            continue
        pci_id = text_of(card / "device/device")
        memory = text_of(card / "lmem_total_bytes")
        found.append(
            Detected(
                platform="xpu",
                name=f"Intel(R) Graphics [{pci_id}]",
                pci_id=pci_id,
                memory_bytes=int(memory) if memory and memory.isdigit() else None,
                driver=_driver(card),
                index=len(found),
            )
        )
    return found


def _driver(card: Path) -> str | None:
    try:
        return (card / "device/driver").readlink().name
    except OSError:
        return None
