"""What NVIDIA machine code makes a warp issue: counts of one program's code, once and for each tile.

`nvdisasm -c` prints SASS with labels. The first loop, in the order of the code, that multiplies matrices is the one
that takes whole tiles (a masked tail stands behind it and is entered once at most); what stands in no such loop runs
once. Pure functions of the text, and the one call of the disassembler, which Triton brings along.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

Counts = dict[str, int]

_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<code>[^;]+);|^(?P<label>\.L\w+):", re.M)
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_JUMP = re.compile(r"^BRA\b.*`\((\.L\w+)\)")
_MATRIX = re.compile(r"^(?:[HIQ]G?MMA|UTC\w*MMA)\b")
_SHARED = re.compile(r"^(?:LDS|STS|LDSM|SHFL)\b")
_DISASSEMBLY_S = 60.0


def read_sass(text: str) -> Counts:
    """Return instructions, barriers, shared-memory clocks, of `once_*` and `tile_*`; {} where no loop multiplies."""
    code, labels = _parsed(text)
    loops = _matrix_loops(code, labels)
    if not loops:
        return {}
    first, last = loops[0]
    inside = {place for begin, end in loops for place in range(begin, end + 1)}
    once = [word for place, word in enumerate(code) if place not in inside]
    return _counts("once", once) | _counts("tile", code[first : last + 1])


def disassembled(cubin: bytes) -> str:
    """Return the SASS of a binary, "" where Triton has no disassembler or it fails."""
    try:
        from triton import knobs

        program = knobs.nvidia.nvdisasm.path
        with tempfile.TemporaryDirectory(prefix="kvreg-sass-") as folder:
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            done = subprocess.run(
                [program, "-c", str(file)], capture_output=True, text=True, timeout=_DISASSEMBLY_S, check=True
            )
    except (ImportError, AttributeError, RuntimeError, OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _parsed(text: str) -> tuple[list[str], dict[str, int]]:
    """Return the instructions without predicates and padding, and where each label stands among them."""
    code: list[str] = []
    labels: dict[str, int] = {}
    for match in _LINE.finditer(text):
        if match["label"]:
            labels[match["label"]] = len(code)
            continue
        word = _PREDICATE.sub("", match["code"].strip())
        if not word.startswith("NOP"):
            code.append(word)
    return code, labels


def _matrix_loops(code: Sequence[str], labels: dict[str, int]) -> list[tuple[int, int]]:
    """Return the innermost loops that multiply matrices, as (first, last) instruction, in order."""
    found = []
    for last, word in enumerate(code):
        jump = _JUMP.match(word)
        first = labels.get(jump[1], last) if jump else last
        if first < last and any(_MATRIX.match(each) for each in code[first : last + 1]):
            found.append((first, last))
    return sorted(
        outer
        for outer in found
        if not any(inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1] for inner in found)
    )


def _counts(name: str, code: Sequence[str]) -> Counts:
    return {
        f"{name}_instructions": len(code),
        f"{name}_barriers": sum(word.startswith("BAR") for word in code),
        f"{name}_shared_clocks": sum(_shared_clocks(word) for word in code),
    }


def _shared_clocks(word: str) -> int:
    """Return how long a warp's access keeps the 32 banks of 4 bytes, without conflicts."""
    if not _SHARED.match(word):
        return 0
    operation = word.split()[0].split(".")
    if "128" in operation or (operation[0] == "LDSM" and "4" in operation):
        return 4
    return 2 if "64" in operation or (operation[0] == "LDSM" and "2" in operation) else 1
