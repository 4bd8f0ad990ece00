"""Intel's offline compiler, where it is on PATH: what it says of a SPIR-V kernel for Xe-HPC (max1100, max1550).

    warning: kernel attend  compiled SIMD16 allocated 128 regs and spilled around 871

is all that it tells of spills; without that line a kernel spills nothing, and its registers stand in the `.ze_info` of
the binary. The figures carry the compiler's release as their label and refuse nothing: those before 24 come from a
code generator of 2022 or 2023 that exaggerates spills, and no newer one was at hand to make a rule with.
It knows no Battlemage before 24, so Xe-HPC, which has the same sub-groups of 16 and registers of 64 bytes, is asked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEVICE = "pvc"
TIMEOUT_S = 600.0
"""One attention kernel took 19 to 23 s of processor time with 22.43, and the larger ones several times that."""

_SPILLS = re.compile(r"kernel (?P<name>\S+)\s+compiled SIMD(?P<lanes>\d+) allocated (?P<registers>\d+) regs"
                     r"(?: and spilled around (?P<spilled>\d+))?")  # fmt: skip
_QUERY = "OCL_DRIVER_VERSION"


@dataclass(frozen=True, slots=True)
class Figures:
    """What ocloc says of one kernel; None where it says nothing."""

    label: str
    """`ocloc 22.43.24595`."""
    device: str
    lanes: int | None = None
    registers: int | None = None
    """Registers of 64 bytes that a hardware thread has: 128 or 256."""
    spilled: int | None = None
    """ocloc's "spilled around"; 0 where it warns of nothing."""
    error: str | None = None
    """Its own words where it made no binary."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def find() -> Path | None:
    """Return the ocloc of PATH."""
    found = shutil.which("ocloc")
    return Path(found) if found else None


def version(program: Path) -> str | None:
    """Return the release of the driver that an ocloc belongs to (22.43.24595); None when it does not say."""
    with tempfile.TemporaryDirectory(prefix="kvreg-ocloc-") as folder:
        try:
            # It writes its answer into a file of that name.
            subprocess.run([program, "query", _QUERY], cwd=folder, capture_output=True, timeout=30, check=False)
            text = (Path(folder) / _QUERY).read_text(encoding="utf-8", errors="replace")
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else None


def figures(program: Path, spirv: Path, kernel: str, build_flags: str) -> Figures:
    """Compile a SPIR-V file for Xe-HPC and return what ocloc says of `kernel`; a failure is figures with an `error`.

    `build_flags` are those that triton-xpu names, which hold the number of registers.
    """
    label = f"ocloc {version(program) or 'of unknown release'}"
    out = spirv.parent
    command = [
        program, "compile", "-file", spirv.name, "-spirv_input", "-device", DEVICE, "-options", build_flags,
        "-internal_options", "-cl-intel-allow-zebin", "-out_dir", ".", "-output", spirv.stem,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Figures(label, DEVICE, error=str(error))
    printed = f"{done.stdout}\n{done.stderr}"
    binaries = sorted(out.glob(f"{spirv.stem}*.bin"))
    if done.returncode != 0 or not binaries:
        return Figures(label, DEVICE, error=" ".join(printed.split())[-400:] or f"exit code {done.returncode}")
    return parse(label, printed, binaries[0].read_bytes(), kernel)


def parse(label: str, printed: str, binary: bytes, kernel: str) -> Figures:
    """Return the figures of `kernel` from what ocloc printed and from the description in its binary (a zebin)."""
    warned = next((found for found in _SPILLS.finditer(printed) if found["name"] == kernel), None)
    if warned is not None:
        return Figures(
            label, DEVICE, int(warned["lanes"]), int(warned["registers"]), int(warned["spilled"] or 0)
        )  # fmt: skip
    described = _described(binary.decode("latin-1"), kernel)
    return Figures(label, DEVICE, described.get("simd_size"), described.get("grf_count"), 0 if described else None)


def _described(text: str, kernel: str) -> dict[str, int]:
    """Return the numbers of a kernel's execution_env in `.ze_info`, which is YAML inside the binary."""
    entry = re.search(rf"- name:\s+{re.escape(kernel)}\n(?P<body>.*?)(?=\n  - name:|\Z)", text, re.DOTALL)
    numbers = re.findall(r"^\s+(grf_count|simd_size):\s+(\d+)$", entry["body"] if entry else "", re.MULTILINE)
    return {name: int(value) for name, value in numbers}
