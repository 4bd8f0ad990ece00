"""One compilation as plain data, and recording those that the product's own launchers make for a card that is absent.

Triton adds to a launch what it sees of the arguments: that a pointer is a multiple of 16, that an integer is 1, on AMD
that a tensor lies within 2 GiB. These decide the width and the kind of loads, so they are not written down by hand:
a stand-in for the driver names the target, the launcher runs under `compile_only`, and Triton's own hook hands over
what it was about to compile. Nothing is compiled here and no card is asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvreg.core.devices import Device
from kvreg.core.errors import Refused, wrong

Target = tuple[str, Any, int]
"""Triton's backend, arch and lanes of a warp: ("cuda", 90, 32), ("hip", "gfx942", 64), ("xpu", {properties}, 32)."""

LENDERS: Mapping[str, Target] = {"xpu": ("cuda", 90, 32)}
"""Backends that Triton's own wheel lacks, and with whose eyes a launch is seen in their stead: both add to it what
Triton's base class does (a multiple of 16, an integer of 1) and take e4m3fn; AMD's adds its 2 GiB."""

ALWAYS = ("num_warps", "num_stages", "enable_fp_fusion")
"""Options that are named even where they are Triton's default, which differs by release."""

_DTYPE = "dtype:"


@dataclass(frozen=True, slots=True)
class Specialization:
    """One kernel with everything that decides what machine code it becomes."""

    kernel: str
    """`module:function`."""
    signature: Mapping[str, str]
    """Parameter -> type ("*fp16", "i32", "constexpr"), in the kernel's order."""
    constexprs: Mapping[str, Any]
    """Parameter -> value; a Triton type is written "dtype:fp16"."""
    attrs: Mapping[str, list[list[Any]]]
    """Parameter -> what is known of it: [["tt.divisibility", 16], ["tt.pointer_range", 32]]."""
    options: Mapping[str, Any]
    """num_warps, num_stages and what else the launch named."""
    target: Target

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` gives an equal specialization back."""
        return {
            "kernel": self.kernel,
            "signature": dict(self.signature),
            "constexprs": dict(self.constexprs),
            "attrs": dict(self.attrs),
            "options": dict(self.options),
            "target": list(self.target),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Specialization:
        """Read what `to_json` gave."""
        backend, arch, lanes = record["target"]
        return cls(
            kernel=record["kernel"],
            signature=dict(record["signature"]),
            constexprs=dict(record["constexprs"]),
            attrs=dict(record["attrs"]),
            options=dict(record["options"]),
            target=(backend, arch, lanes),
        )

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that equal compilations of one kernel source share."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def target_of(device: Device) -> Target:
    """Return Triton's target for a device; raises Refused where the facts name none."""
    stated = device.facts.get("triton_target")
    if isinstance(stated, list | tuple) and len(stated) == 3:
        backend, arch, lanes = stated
        return str(backend), arch, int(lanes)
    if device.capability is not None:
        major, minor = device.capability
        return "cuda", major * 10 + minor, 32
    if device.arch.startswith("gfx"):
        return "hip", device.arch, device.warp_sizes[0] if device.warp_sizes else 64
    raise Refused(
        wrong(
            f"compile for {device.key}",
            required="an arch that Triton compiles for: sm_NN, gfxNNN",
            found=device.arch,
            remedy="`kvreg toolchain check` says what each platform can be told on this machine",
        )
    )


class StandIn:
    """What Triton asks of a driver before it compiles; a launch would fail, and none is made."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(*target)

    def get_current_target(self) -> Any:
        """Return the target that is compiled for."""
        return self._target

    def get_current_device(self) -> str:
        """Return the key under which Triton keeps what it compiled: one for each target."""
        return repr(self._target)

    def get_current_stream(self, device: str) -> int:
        """Return the null stream."""
        return 0


@contextmanager
def recording(target: Target) -> Iterator[list[Specialization]]:
    """Record, instead of compiling, what launchers would compile for `target`; equal ones once, in their order.

    For a process that serves no card: Triton's active driver is replaced for the time of the block.
    """
    import triton
    from triton.runtime.driver import driver

    from kvreg_triton.launch import compile_only

    found: dict[str, Specialization] = {}
    seen_as = LENDERS.get(target[0], target)

    def record(**call: Any) -> bool:
        one = _of_hook(call, target, seen_as)
        found.setdefault(one.digest, one)
        recorded[:] = found.values()
        return True  # tells Triton that there is nothing left to compile

    recorded: list[Specialization] = []
    before_hook, before_driver = triton.knobs.runtime.jit_cache_hook, driver._active
    triton.knobs.runtime.jit_cache_hook = record
    driver.set_active(StandIn(seen_as))
    try:
        with compile_only():
            yield recorded
    finally:
        triton.knobs.runtime.jit_cache_hook = before_hook
        driver._active = before_driver


def _of_hook(call: Mapping[str, Any], target: Target, seen_as: Target) -> Specialization:
    told, function = call["compile"], call["fn"].jit_function
    names = function.arg_names
    constants = {names[path[0]]: _written(value) for path, value in told["constants"].items()}
    attrs = {names[path[0]]: known for path, known in told["configs"][0].items() if known}
    options = json.loads(told["specialization_data"])["options"]
    return Specialization(
        kernel=f"{function.module}:{function.__name__}",
        signature=dict(told["signature"]),
        constexprs=constants,
        attrs=attrs,
        options=_named(options, seen_as),
        target=target,
    )


def _named(options: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Return the options that a launch named: those of ALWAYS, and those that differ from the backend's own."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    plain = make_backend(GPUTarget(*target)).parse_options({"enable_fp_fusion": True}).__dict__
    plain = json.loads(json.dumps(plain, default=str))
    return {name: value for name, value in options.items() if name in ALWAYS or plain.get(name) != value}


def _written(value: Any) -> Any:
    if type(value).__name__ == "dtype":
        return f"{_DTYPE}{value}"
    if type(value).__name__ == "constexpr":
        return _written(value.value)
    return value


def read_constant(value: Any) -> Any:
    """Return a constant as a kernel takes it."""
    if isinstance(value, str) and value.startswith(_DTYPE):
        import triton.language as tl

        return tl.dtype(value.removeprefix(_DTYPE))
    return value


def load_kernel(kernel: str) -> Any:
    """Return the jit function that `module:function` names."""
    module, _, function = kernel.partition(":")
    return getattr(importlib.import_module(module), function)
