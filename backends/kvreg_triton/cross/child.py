"""The program that compiles one specialization: `python -m kvreg_triton.cross.child`, JSON in and JSON out.

stdin: {"specialization": {...}, "properties": {...}?, "keep": FOLDER?}; stdout: one object,

    {"status": "ok", "seconds", "triton", "reading": {...}}      or      {"status": "error", "type", "error"}

A process serves one compilation, because LLVM ends it where it cannot select an instruction. It needs Triton alone:
torch, which the launchers' module imports, is replaced where it is absent or slow to load. `keep` takes the texts.
What Triton prints (a failing ptxas makes it print the whole PTX) goes to a file of its own and is read for the log of
ptxas.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Reader = Callable[[Any, str], dict[str, Any]]
"""From a compiled kernel and what Triton printed to its reading."""

KEPT = ("ptx", "amdgcn", "spv")
"""Texts that readings are made of."""
ERROR_CHARACTERS = 2000


def main(prepare: Callable[[], None] | None = None, reader: Reader | None = None) -> int:
    """Answer one request. `prepare` is called before the compilation, `reader` stands in for `read`."""
    request = json.load(sys.stdin)
    answer_to = os.dup(1)
    with tempfile.TemporaryDirectory(prefix="kvreg-compile-") as folder:
        printed = Path(folder) / "printed"
        with open(printed, "wb") as file:
            os.dup2(file.fileno(), 1)
        # A cached binary would come without the log of ptxas; results are kept by the caller.
        os.environ |= {"TRITON_CACHE_DIR": folder, "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_INTERPRET": "0"}
        answer = _answer(request, printed, prepare, reader or read)
    with open(answer_to, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    return 0


def _answer(
    request: Mapping[str, Any], printed: Path, prepare: Callable[[], None] | None, reader: Reader
) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        _without_torch()
        import triton

        if prepare is not None:
            prepare()
        kernel = compile_one(request["specialization"])
        sys.stdout.flush()
        reading = reader(kernel, printed.read_text(encoding="utf-8", errors="replace"))
        if request.get("keep"):
            _keep(kernel, Path(request["keep"]))
    except Exception as error:
        text = str(error).strip()
        if len(text) > ERROR_CHARACTERS:  # ptxas's message ends with the reason, the PTX stands before it
            text = f"{text[: ERROR_CHARACTERS // 2]} ... {text[-ERROR_CHARACTERS // 2 :]}"
        return {"status": "error", "type": type(error).__name__, "error": text}
    seconds = round(time.perf_counter() - began, 2)
    return {"status": "ok", "seconds": seconds, "triton": str(triton.__version__), "reading": reading}


def _without_torch() -> None:
    """Let the launchers' module be imported without torch: no tensor is made here, and torch takes seconds to load.

    Types in the signatures and tables of a kernel's module are looked up when it is imported; any object does. Triton
    asks for a card, of which there is none.
    """
    from types import ModuleType, SimpleNamespace

    class StandIn(ModuleType):
        cuda = SimpleNamespace(is_available=lambda: False)

        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return object

    sys.modules.setdefault("torch", StandIn("torch"))


def compile_one(record: Mapping[str, Any]) -> Any:
    """Compile a specialization's JSON form and return Triton's compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.driver import driver

    from kvreg_triton.cross.specializations import Specialization, StandIn, load_kernel, read_constant

    one = Specialization.from_json(record)
    if one.target[0] == "cuda":  # kernels that only NVIDIA cards have ask the driver what they are compiled for
        driver.set_active(StandIn(one.target))
    function = load_kernel(one.kernel)
    place = {name: index for index, name in enumerate(function.arg_names)}
    source = ASTSource(
        fn=function,
        signature=dict(one.signature),
        constexprs={(place[name],): read_constant(value) for name, value in one.constexprs.items()},
        attrs={(place[name],): known for name, known in one.attrs.items()},
    )
    return triton.compile(source, target=GPUTarget(*one.target), options=dict(one.options))


def read(kernel: Any, log: str) -> dict[str, Any]:
    """Return the reading of a compiled kernel; see kvreg_triton.cross.readings."""
    from kvreg_triton.cross import machine_code, readings

    metadata, backend = kernel.metadata, kernel.metadata.target.backend
    if backend == "cuda":
        found = readings.read_cuda(
            kernel.asm["ptx"], log, metadata.shared, metadata.num_warps * metadata.target.warp_size
        )
        return {**found, "code_bytes": None, **machine_code.read_sass(machine_code.disassembled(kernel.asm["cubin"]))}
    if backend == "hip":
        return readings.read_hip(kernel.asm["amdgcn"], metadata.shared, metadata.num_warps)
    found = readings.read_xpu(kernel.asm["spv"], metadata.shared)
    lanes = getattr(metadata, "threads_per_warp", None) or getattr(metadata, "warp_size", None)
    return {**found, "lanes": lanes, "threads": metadata.num_warps * lanes if lanes else None}


def _keep(kernel: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        text = kernel.asm.get(name)
        if text is not None:
            (folder / f"kernel.{name}").write_bytes(text if isinstance(text, bytes) else text.encode())


if __name__ == "__main__":
    sys.exit(main())
