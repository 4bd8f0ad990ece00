"""What can be told of each target on this machine: its compiler, the compiler's release, and what is read of its code.

Looking is quick and asks for versions and, of NVIDIA's assembler, for the archs that it knows. `tried` compiles the
shortest kernel for each target, which is the only proof.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kvreg.core import environments, installed
from kvreg.core.devices import Device
from kvreg.core.errors import ToolchainUnavailable, wrong
from kvreg.core.supported import PACKAGES
from kvreg_triton.cross.compilations import Compiler
from kvreg_triton.cross.specializations import Specialization, Target, target_of
from kvreg_xpu import ocloc
from kvreg_xpu.targets import target_of as xpu_target
from kvreg_xpu.toolchain import CHILD, OCLOC_VARIABLE, RECIPE

READS = {
    "cuda": "registers, stack, spills, shared memory, matrix instructions, widths of loads",
    "rocm": "registers, spills, scratch, LDS, waves a SIMD, matrix instructions, widths of loads",
    "xpu": "DPAS and its shapes, SLM, sub-group size, 2D block loads; no registers, no spills",
    "ocloc": "registers and spills of Xe-HPC (max1100, max1550), under its release; they refuse nothing",
}
GET = {
    "triton": f"pip install 'triton{PACKAGES['triton']}'",
    "xpu": f"kvreg toolchain install {RECIPE.name}",
    "ocloc": "install the package intel-opencl-icd (Debian, Ubuntu) or intel-ocloc",
}
TRY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Compilable:
    """One target: `state` is ok, missing or fails."""

    target: str
    """An arch: sm_90, gfx942, bmg; or ocloc."""
    platform: str
    compiler: str
    version: str | None
    state: str
    reads: str
    problem: str | None = None
    """What is missing or fails; None where nothing is."""
    remedy: str | None = None


def look(devices: Sequence[Device], home: Path) -> tuple[Compilable, ...]:
    """Return every arch of `devices` that a compiler could serve, then ocloc; nothing is compiled."""
    found = []
    for platform in ("cuda", "rocm", "xpu"):
        for arch in sorted({each.arch for each in devices if each.platform == platform}, key=_by_number):
            found.append(_xpu(arch, home) if platform == "xpu" else _triton(arch, platform))
    return (*found, _ocloc())


def tried(found: Sequence[Compilable], devices: Sequence[Device], home: Path, jobs: int) -> Iterator[Compilable]:
    """Yield each target after the shortest kernel, the write of mode `none`, was compiled for it."""
    by_arch = {each.arch: each for each in devices if each.is_arch}
    open_ones = [one for one in found if one.state == "ok" and one.target in by_arch]
    yield from (one for one in found if one not in open_ones)
    for own in (False, True):  # Intel's compiler is a program of its own
        some = [one for one in open_ones if (one.platform == "xpu") is own]
        if not some:
            continue
        compiled_by = [compiler_of(by_arch[one.target], home) for one in some]
        compiler = replace(compiled_by[0][0], jobs=jobs, timeout_s=TRY_TIMEOUT_S)
        for index, result in compiler.run([plain_write(target) for _, target in compiled_by]):
            if result.status == "ok":
                yield some[index]
            else:
                yield replace(
                    some[index],
                    state="fails",
                    problem=f"{result.status}: {result.error}",
                    remedy="another release of the compiler may do",
                )


def compiler_of(device: Device, home: Path) -> tuple[Compiler, Target]:
    """Return the compiler of a device's platform and its target; raises ToolchainUnavailable where it is absent."""
    if device.platform == "xpu":
        place = environments.place(home, RECIPE.name)
        found = environments.find(place, RECIPE)
        if found is None:
            raise _absent(device, RECIPE.distribution, GET["xpu"])
        # Part of what an answer is kept under: with ocloc's figures it is another one.
        asked = {OCLOC_VARIABLE: os.environ[OCLOC_VARIABLE]} if OCLOC_VARIABLE in os.environ else {}
        compiler = Compiler(python=str(found.interpreter), triton=RECIPE.version, child=CHILD, environment=asked)
        return compiler, xpu_target(device)
    version = installed.versions(("triton",)).get("triton")
    if version is None:
        raise _absent(device, "triton", GET["triton"])
    return Compiler(triton=version), target_of(device)


def _absent(device: Device, compiler: str, remedy: str) -> ToolchainUnavailable:
    return ToolchainUnavailable(
        wrong(f"compile for {device.key}", required=compiler, found="none installed", remedy=f"run `{remedy}`")
    )


def plain_write(target: Target) -> Specialization:
    """Return the write of mode `none` at head size 64 in bf16, as its launcher makes it."""
    pointers = dict.fromkeys(("k_in", "v_in"), "*bf16") | {"slots": "*i64"}
    strides = ("k_in_row", "k_in_head", "v_in_row", "v_in_head")
    cache_strides = ("k_page", "k_slot", "k_head", "v_page", "v_slot", "v_head")
    constants = {"HEAD": 64, "WIDTH": 64, "PAGE": 16, "ALIGN": 8, "ROWS": 16}
    signature = pointers | {"n_rows": "i32"} | dict.fromkeys(strides, "i32") | {"k": "*bf16", "v": "*bf16"}
    signature |= dict.fromkeys(cache_strides, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = (*pointers, *strides, "k", "v", *cache_strides)
    return Specialization(
        kernel="kvreg_triton.write_none:write",
        signature=signature,
        constexprs=constants,
        attrs={name: [["tt.divisibility", 16]] for name in aligned},
        options={"num_warps": 2, "num_stages": 1, "enable_fp_fusion": True},
        target=target,
    )


def _triton(arch: str, platform: str) -> Compilable:
    version = installed.versions(("triton",)).get("triton")
    one = Compilable(arch, platform, "triton", version, "ok", READS[platform])
    if version is None:
        return replace(one, state="missing", problem="triton is not installed", remedy=GET["triton"])
    if not PACKAGES["triton"].holds(version):
        problem = f"required triton {PACKAGES['triton']}, found {version}"
        return replace(one, state="missing", problem=problem, remedy=GET["triton"])
    if platform == "cuda" and arch not in _assembled():
        problem = f"no ptxas of triton {version} knows {arch}"
        return replace(one, state="missing", problem=problem, remedy="take a newer triton")
    return one


@cache
def _assembled() -> frozenset[str]:
    """Return the archs that the assemblers in Triton's wheel know, sm_90 and the like."""
    spec = importlib.util.find_spec("triton")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    known: set[str] = set()
    for folder in folders:
        for program in sorted(Path(folder).glob("backends/nvidia/bin/ptxas*")):
            done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=False)
            known.update(re.findall(r"'(sm_\d+)a?f?'", done.stdout))
    return frozenset(known)


def _xpu(arch: str, home: Path) -> Compilable:
    place = environments.place(home, RECIPE.name)
    one = Compilable(arch, "xpu", RECIPE.distribution, RECIPE.version, "ok", READS["xpu"])
    if environments.find(place, RECIPE) is not None:
        return one
    problem = "its environment is not installed"
    if environments.is_unfinished(Path(os.path.realpath(place))):
        problem = "its installation was cut off"
    return replace(one, version=None, state="missing", problem=problem, remedy=GET["xpu"])


def _ocloc() -> Compilable:
    program = ocloc.find()
    one = Compilable("ocloc", "xpu", "ocloc", None, "missing", READS["ocloc"], "no ocloc on PATH", GET["ocloc"])
    if program is None:
        return one
    return replace(one, version=ocloc.version(program), state="ok", problem=None, remedy=None)


def _by_number(arch: str) -> tuple[str, int]:
    head = arch.rstrip("0123456789")
    return head, int(arch[len(head) :] or 0)
