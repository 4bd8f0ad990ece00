"""A driver for Triton without a card: kernels are not compiled and no launch is made, each is written down instead.

Only what stands below Triton is replaced, its driver and the compiler itself: `JITFunction`, `CompiledKernel` and all
of kvreg are the real ones. A compiled kernel is known by what Triton asked its compiler for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

TARGET = GPUTarget("cuda", 90, 32)


class Utils:
    """What of a driver loads machine code."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        return f"module of {name}", (device, kernel.decode()), 64, 0, 1024

    def unload_module(self, module: str) -> None:
        pass


class Driver:
    """Triton's active driver; `launches` holds each launch as (device, compilation, grid, stream, values).

    What is put into `meanwhile` is called once, during the next launch, as another thread might then.
    """

    def __init__(self) -> None:
        self.utils = Utils()
        self.device = 0
        self.stream = 7
        self.launches: list[tuple[Any, ...]] = []
        self.meanwhile: Callable[[], object] | None = None

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return self.stream

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def launch(x, y, z, stream, function, packed, told, enter, leave, *values):
            device, compilation = function
            if enter is not None:
                enter(told)
            # Triton hands tensors to its launcher, which asks them for their address.
            plain = tuple(each.data_ptr() if hasattr(each, "data_ptr") else each for each in values)
            self.launches.append((device, compilation, (x, y, z), stream, packed, plain))
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()

        return launch


def install(folder: Path) -> Driver:
    """Make every later launch of this process one of a new driver, which is returned."""

    def compile_nothing(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> CompiledKernel:
        constants = sorted((str(key), repr(value)) for key, value in src.constants.items())
        asked = [src.name, list(src.signature.items()), constants, sorted(map(str, src.attrs.items())), str(options)]
        name = f"{src.name}-{compile_nothing.count}"
        compile_nothing.count += 1
        metadata = {
            "name": src.name, "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "shared": 0, "num_ctas": 1,
            "num_warps": options["num_warps"], "cluster_dims": [1, 1, 1], "tmem_size": None, "warp_size": 32,
        }  # fmt: skip
        files = {".json": json.dumps(metadata), ".cubin": json.dumps(asked)}
        paths = {}
        for suffix, text in files.items():
            paths[name + suffix] = folder / (name + suffix)
            paths[name + suffix].write_text(text)
        return CompiledKernel(src, paths, name)

    compile_nothing.count = 0
    triton.compiler.compile = compile_nothing
    made = Driver()
    driver.set_active(made)
    return made
