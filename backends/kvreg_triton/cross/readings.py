"""What a compiled kernel takes of a card, read from the texts that the compiler leaves; pure functions of those texts.

NVIDIA: registers and spills are the words of `ptxas -v`, instructions those of the PTX. AMD: everything stands in the
assembler text. Intel: SPIR-V is no machine code yet, so registers and spills stay unknown. None means unknown.
Shared memory (LDS, SLM) is Triton's own `metadata.shared` plus what the assembler says is static.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Reading = dict[str, Any]

_PTXAS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
}
_AMD = {
    "registers": re.compile(r"^\s*\.vgpr_count:\s*(\d+)", re.M),
    "agprs": re.compile(r"^\s*(?:- )?\.agpr_count:\s*(\d+)", re.M),
    "sgprs": re.compile(r"^\s*\.sgpr_count:\s*(\d+)", re.M),
    "spilled_vgprs": re.compile(r"^\s*\.vgpr_spill_count:\s*(\d+)", re.M),
    "spilled_sgprs": re.compile(r"^\s*\.sgpr_spill_count:\s*(\d+)", re.M),
    "scratch_bytes": re.compile(r"^\s*\.private_segment_fixed_size:\s*(\d+)", re.M),
    "static_shared": re.compile(r"^\s*\.group_segment_fixed_size:\s*(\d+)", re.M),
    "lanes": re.compile(r"^\s*\.wavefront_size:\s*(\d+)", re.M),
    "waves_per_simd": re.compile(r"; Occupancy:\s*(\d+)"),
    "code_bytes": re.compile(r"; codeLenInByte\s*=\s*(\d+)"),
}
"""Names in the metadata block and in the comments behind the kernel. `.vgpr_count` counts accumulation registers in
on gfx90a and later CDNA; scratch is of one lane."""

VGPR_BYTES = 4
"""One lane's part of a vector register."""

MATRIX = {
    "cuda": (("wgmma", r"wgmma\.mma_async"), ("tcgen05.mma", r"tcgen05\.mma"), ("mma.sync", r"mma\.sync")),
    "hip": (("mfma", r"\bv_mfma_"), ("smfmac", r"\bv_smfmac_"), ("wmma", r"\bv_s?wmma")),
    "xpu": (("dpas", r"matrix_mad|SubgroupMatrixMultiplyAccumulate"),),
}
"""Backend -> (name, how it stands in the text), the strongest first."""

_SHAPE = {
    "cuda": re.compile(r"(?:wgmma\.mma_async|mma\.sync)[\w.:]*?\.(m\d+n\d+k\d+)"),
    "hip": re.compile(r"\bv_(?:mfma|smfmac|s?wmma)_\w+?_(\d+x\d+x\d+)"),
}
_LOADS = {
    "cuda": re.compile(r"\b(?P<kind>ld\.global|cp\.async)(?P<rest>[\w.:]*)(?P<bytes>[^;]*)"),
    "hip": re.compile(r"\b(?P<kind>buffer|global)_load_(?P<rest>\w+)"),
}
_AMD_WIDTHS = {"b128": 16, "dwordx4": 16, "b96": 12, "dwordx3": 12, "b64": 8, "dwordx2": 8, "b32": 4, "dword": 4}


def read_cuda(ptx: str, ptxas_log: str, shared: int, threads: int) -> Reading:
    """Return what PTX and the log of `ptxas -v` say of a kernel; `shared` and `threads` are Triton's metadata."""
    log = {name: _largest(pattern, ptxas_log) for name, pattern in _PTXAS.items()}
    spills = [size for name in ("spill_stores", "spill_loads") if (size := log[name]) is not None]
    return {
        "registers": log["registers"],
        # A register that is stored once may be loaded often: the larger of both is what a thread moves.
        "spill_bytes": max(spills) if spills else None,
        "stack_bytes": log["stack_bytes"],
        "shared_bytes": shared,
        "threads": threads,
        **_instructions("cuda", ptx),
    }


def read_hip(assembler: str, shared: int, warps: int) -> Reading:
    """Return what AMD assembler text says of a kernel; `shared` and `warps` are Triton's metadata.

    The text does not know dynamic LDS, and where a group would have more than 1024 threads it says 1024.
    """
    found = {name: _largest(pattern, assembler) for name, pattern in _AMD.items()}
    spilled, static = found.pop("spilled_vgprs"), found.pop("static_shared")
    return {
        **found,
        "spill_bytes": None if spilled is None else spilled * VGPR_BYTES,
        "shared_bytes": shared + (static or 0),
        "threads": None if found["lanes"] is None else warps * found["lanes"],
        **_instructions("hip", assembler),
    }


def read_xpu(spirv: bytes, shared: int) -> Reading:
    """Return what SPIR-V says of a kernel: instructions by their imported names, no register and no spill."""
    return {
        "registers": None,
        "spill_bytes": None,
        "shared_bytes": shared,
        **_instructions("xpu", spirv.decode("latin-1")),
        "code_bytes": len(spirv),
    }


def _instructions(backend: str, text: str) -> Reading:
    name, count = None, 0
    for known, pattern in MATRIX[backend]:
        count = len(re.findall(pattern, text))
        if count:
            name = known
            break
    shapes = sorted(set(_SHAPE[backend].findall(text))) if backend in _SHAPE else []
    return {
        "matrix_instruction": name,
        "matrix_instructions": count,
        "matrix_shapes": shapes,
        "loads": loads(backend, text),
    }


def loads(backend: str, text: str) -> dict[str, int]:
    """Return how often each kind and width of load from memory stands in a text: {"buffer 16": 8, "global 4": 3}."""
    counts: dict[str, int] = {}
    for match in _LOADS[backend].finditer(text) if backend in _LOADS else ():
        width = _cuda_width(match) if backend == "cuda" else _hip_width(match["rest"])
        if width is not None:
            name = f"{match['kind'].removeprefix('ld.')} {width}"
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _cuda_width(match: re.Match[str]) -> int | None:
    if match["kind"] == "cp.async":
        # cp.async.cg.shared.global [to], [from], 0x10, ...;   commit and wait groups carry no bytes
        size = re.search(r"\],\s*\[[^\]]*\],\s*(0x[0-9a-f]+|\d+)", match["bytes"])
        return int(size[1], 0) if size else None
    lanes = re.search(r"\.v(\d)", match["rest"])
    bits = re.search(r"\.[bsuf](\d+)$", match["rest"])
    return int(bits[1]) // 8 * (int(lanes[1]) if lanes else 1) if bits else None


def _hip_width(rest: str) -> int | None:
    """Return the bytes of a lane; what is loaded straight into LDS ends in _lds."""
    word = rest.removeprefix("lds_").split("_")[0]
    if word in _AMD_WIDTHS:
        return _AMD_WIDTHS[word]
    if word in ("ubyte", "sbyte", "u8", "i8", "d16"):
        return 1 if word != "d16" else 2
    return 2 if word in ("ushort", "sshort", "short", "u16", "i16") else None


def _largest(pattern: re.Pattern[str], text: str) -> int | None:
    found = [int(number) for number in pattern.findall(text)]
    return max(found) if found else None


def worst(found: Mapping[str, Reading]) -> Reading:
    """Return the figures of a trace: the most that any of several kernels takes, and the first matrix instruction.

    A figure that is unknown of one kernel is unknown of all.
    """
    readings = list(found.values())
    result: Reading = {}
    for name in ("registers", "spill_bytes", "shared_bytes", "stack_bytes", "scratch_bytes", "code_bytes"):
        values = [each.get(name) for each in readings]
        known = [value for value in values if value is not None]
        if known or name in ("registers", "spill_bytes", "shared_bytes"):
            result[name] = max(known) if known and len(known) == len(values) else None
    result["matrix_instruction"] = next(
        (each["matrix_instruction"] for each in readings if each.get("matrix_instruction")), None
    )
    return result
