"""AMD cards of this machine as the amdgpu driver shows them under /sys; no ROCm tool is needed."""

from __future__ import annotations

import os
from pathlib import Path

from kvreg.core.backends import Detected
from kvreg.core.probing import entries, properties, text_of, visible

_AMD = 0x1002
_VRAM_HEAPS = (1, 2)  # public and private frame buffer, KFD's HSA_MEM_HEAP_TYPE


def cards(sys: Path = Path("/sys")) -> list[Detected]:
    """Return the GPUs of KFD's topology in its order, which is HIP's, as far as *_VISIBLE_DEVICES leave them."""
    driver = text_of(sys / "module/amdgpu/version")
    found: list[Detected] = []
    for node in entries(sys / "class/kfd/kfd/topology/nodes", "*"):
        facts = properties(node / "properties")
        # Processors are nodes as well; they have no SIMDs.
        if facts.get("vendor_id") != _AMD or not facts.get("simd_count"):
            continue
        found.append(
            Detected(
                platform="rocm",
                name=_name(sys, facts),
                arch=gfx(facts.get("gfx_target_version", 0)),
                pci_id=f"0x{facts['device_id']:04x}" if "device_id" in facts else None,
                compute_units=facts["simd_count"] // max(1, facts.get("simd_per_cu", 1)),
                memory_bytes=_memory(node),
                driver=driver,
                index=len(found),
            )
        )
    # ROCR's list applies first, HIP's (or CUDA's, which HIP reads too) to what it leaves.
    found = visible(found, ("ROCR_VISIBLE_DEVICES",), os.environ)
    return visible(found, ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), os.environ)


def gfx(version: int) -> str | None:
    """Return gfx942 for KFD's 90402 (major * 10000 + minor * 100 + stepping, the last two hexadecimal digits)."""
    if version <= 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _name(sys: Path, facts: dict[str, int]) -> str:
    minor = facts.get("drm_render_minor")
    product = text_of(sys / f"class/drm/renderD{minor}/device/product_name") if minor else None
    # What the run time says too where the driver knows no product name.
    return product or "AMD Radeon Graphics"


def _memory(node: Path) -> int | None:
    banks = [properties(bank / "properties") for bank in entries(node / "mem_banks", "*")]
    sizes = [bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _VRAM_HEAPS]
    return sum(sizes) or None
