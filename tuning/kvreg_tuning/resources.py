"""What a compiled kernel takes of a card: registers, spills, shared memory, and the matrix instruction in its text.

Read from the compiled object that Triton returns, on the card that it was compiled for. Whatever a release of Triton
does not tell stays None; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Resources = dict[str, int | str | None]
UNKNOWN: Resources = {"registers": None, "spill_bytes": None, "shared_bytes": None, "matrix_instruction": None}

SPILL_UNIT = 4
"""Triton's CUDA driver divides the local memory of a thread by 4 and calls it n_spills."""

INSTRUCTIONS = (
    ("ptx", "wgmma.mma_async", "wgmma"),
    ("ptx", "tcgen05.mma", "tcgen05.mma"),
    ("ptx", "mma.sync", "mma.sync"),
    ("amdgcn", "v_mfma", "mfma"),
    ("amdgcn", "v_smfmac", "smfmac"),
    ("amdgcn", "v_wmma", "wmma"),
    ("spv", "matrix_mad", "dpas"),
)
"""(text, what stands in it, how it is named), the strongest of a platform first."""


def matrix_instruction(texts: Mapping[str, Any]) -> str | None:
    """Return the matrix instruction that stands in a kernel's text, None where there is none."""
    for kind, mark, name in INSTRUCTIONS:
        text = texts.get(kind)
        if text is None:
            continue
        found = mark.encode() in text if isinstance(text, bytes) else mark in text
        if found:
            return name
    return None


def of_kernel(kernel: Any) -> Resources:
    """Return the resources of one compiled kernel."""
    # Registers are known once the driver has loaded the binary, which a compilation alone does not do.
    load = getattr(kernel, "_init_handles", None)
    if load is not None:
        load()
    spills = _whole(getattr(kernel, "n_spills", None))
    shared = getattr(getattr(kernel, "metadata", None), "shared", None)
    return {
        "registers": _whole(getattr(kernel, "n_regs", None)),
        "spill_bytes": None if spills is None else spills * SPILL_UNIT,
        "shared_bytes": _whole(shared),
        "matrix_instruction": matrix_instruction(dict(getattr(kernel, "asm", None) or {})),
    }


def worst(found: Sequence[Resources]) -> Resources:
    """Return the most that any of several kernels takes, and the matrix instruction of the first that has one."""
    result = dict(UNKNOWN)
    for name in ("registers", "spill_bytes", "shared_bytes"):
        values = [each[name] for each in found if isinstance(each.get(name), int)]
        result[name] = max(values) if values else None  # type: ignore[type-var]
    result["matrix_instruction"] = next(
        (each["matrix_instruction"] for each in found if each.get("matrix_instruction")), None
    )
    return result


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
