"""The program that compiles one specialization under triton-xpu: `python -m kvreg_xpu.child`, JSON in and JSON out.

Requests and answers are those of kvreg_triton.cross.child. Three things stand between triton-xpu 3.3.0b1 and a machine
without a card, and are mended in this process only:

- its backend compiles a helper that names the card from a code of the driver, and needs SYCL for that: a stand-in
  gives no name, and the properties of the target say what the card has;
- its front end cannot subscript a constant tuple (`SIGN_WORDS[j]`), which every Triton from 3.6 on can;
- torch, which the launchers' module imports, is not installed beside it (kvreg_triton.cross.child replaces it).

Where XPU_OCLOC names an ocloc, its figures for Xe-HPC join the reading as `ocloc`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvreg_triton.cross import child
from kvreg_xpu import ocloc, spirv
from kvreg_xpu.toolchain import OCLOC_VARIABLE


def main() -> int:
    """Answer one request."""
    return child.main(prepare=prepare, reader=read)


def prepare() -> None:
    """Make triton-xpu usable without a card, SYCL and Level Zero."""
    from triton.backends import backends
    from triton.language.core import constexpr

    # The module is loaded under a private name, so its globals are reached through the registered class.
    module = backends["intel"].compiler.__init__.__globals__
    module["compile_module_from_src"] = lambda source, name: NamelessArch()
    if not hasattr(constexpr, "__getitem__"):
        constexpr.__getitem__ = lambda constant, index: constexpr(constant.value[_plain(index)])


class NamelessArch:
    """Stands in for the compiled helper; an empty name also keeps triton-xpu from asking ocloc for extensions."""

    def parse_device_arch(self, code: int) -> str:
        """Return no name."""
        return ""


def _plain(index: Any) -> Any:
    return getattr(index, "value", index)


def read(kernel: Any, log: str) -> dict[str, Any]:
    """Return the reading of the SPIR-V, with ocloc's figures where it was asked for."""
    reading: dict[str, Any] = child.read(kernel, log)
    called = spirv.calls(kernel.asm["spv"])
    # The name of an imported function stands in a module once, however often it is called.
    reading["matrix_instructions"], reading["matrix_shapes"] = spirv.dpas(called, reading["lanes"])
    reading["loads"] = {"2d block": sum(count for name, count in called.items() if spirv.BLOCK_LOAD in name)}
    path = os.environ.get(OCLOC_VARIABLE)
    if path:
        reading["ocloc"] = _native(Path(path), kernel.asm["spv"], kernel.metadata)
    return reading


def _native(program: Path, spirv: bytes, metadata: Any) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kvreg-ocloc-") as folder:
        source = Path(folder) / "kernel.spv"
        source.write_bytes(spirv)
        return ocloc.figures(program, source, metadata.name, metadata.build_flags).to_json()


if __name__ == "__main__":
    sys.exit(main())
