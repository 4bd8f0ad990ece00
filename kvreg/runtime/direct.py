"""Launches made without Triton once the compiled kernel that they take is known.

Triton's `kernel[grid](...)` looks at every argument and option to find the compiled kernel that they take, which costs
20 to 25 us of the host's time in each launch. What it finds is kept here, by the same facts: of a pointer its type and
whether it is a multiple of 16, of an integer whether it is 1, a multiple of 16 and held by 32 bits, the device, and
all of the compile-time constants and options. The next launch calls the compiled kernel as `JITFunction.run` ends.

Which kernel is launched, with which arguments and constants, is the launcher's and in the kernel hash; how a compiled
kernel is called is not, as Triton's own way is not. `kvreg.runtime.launchers.load` hands every launcher out with its
kernels in `Direct`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

from kvreg.runtime import replay

RELEASES = ((3, 6), (3, 9))
"""First and last release of Triton whose `JITFunction.run` was read: its end is what `_Compiled.launch` does, and its
keys are no finer than `_seen`. Others are handed every launch."""

BACKEND = "cuda"
"""The backend of which the same is known: AMD's looks at the size of a tensor's storage as well."""

ONLY_LAUNCH = ("kvreg_triton.launch", "kvreg_cuda.launching")
"""Modules whose launchers do nothing but launch; their text is in the hashes of evidence, and does not say it."""

DIRECT = (
    RELEASES[0] <= tuple(int(part) for part in triton.__version__.split(".")[:2]) <= RELEASES[1]
    and torch.version.hip is None
    and getattr(torch.version, "xpu", None) is None
)
"""Whether launches of this process may be made without Triton."""

_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_RUNTIME = knobs.runtime
_INT64 = 1 << 63


def launcher_of(launcher: Any) -> Any:
    """Return a copy of a launcher whose kernels are launched directly; itself where it holds none of Triton's.

    `only_submits` (kvreg.runtime.launchers) is what the launcher says, or its module is among ONLY_LAUNCH.
    """
    kernels = {
        name: held for name, held in getattr(launcher, "__dict__", {}).items() if type(held) is triton.JITFunction
    }
    if not DIRECT or not kernels:
        return launcher
    made = copy.copy(launcher)
    vars(made).update({name: Direct(kernel) for name, kernel in kernels.items()})
    made.only_submits = getattr(launcher, "only_submits", type(launcher).__call__.__module__ in ONLY_LAUNCH)
    return made


class Direct:
    """A kernel of Triton that is launched without it where the compiled kernel is known."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Return what launches on `grid`, on the current device, with a kernel's arguments, constants and options."""
        return lambda *args, **meta: _launch(self.kernel, grid, args, meta)

    def warmup(self, *args: Any, grid: tuple[int, ...], **meta: Any) -> Any:
        """Compile as triton.JITFunction.warmup does."""
        if (recording := replay.current()) is not None:
            recording.spoil()
        return self.kernel.warmup(*args, grid=grid, **meta)


class _Compiled:
    """A compiled kernel on one device, with its compile-time constants in the kernel's order."""

    __slots__ = ("constants", "device", "function", "kernel", "packed", "run")

    def __init__(self, kernel: CompiledKernel, device: int, constants: tuple[Any, ...]) -> None:
        self.kernel = kernel  # which unloads its module when nobody holds it
        self.run = kernel.run
        self.function = kernel.function
        self.packed = kernel.packed_metadata
        self.device = device
        self.constants = constants

    def launch(self, grid: tuple[int, int, int], values: Sequence[Any]) -> None:
        """Launch on the current stream, with an address in the place of each tensor."""
        stream = driver.active.get_current_stream(self.device)
        self.run(*grid, stream, self.function, self.packed, None, None, None, *values, *self.constants)


class _Placed:
    """A compiled kernel with its grid, as kvreg.runtime.replay makes it again."""

    __slots__ = ("compiled", "grid")

    def __init__(self, compiled: _Compiled, grid: tuple[int, int, int]) -> None:
        self.compiled, self.grid = compiled, grid

    def ready(self) -> bool:
        """Return whether Triton need not be asked: see `_is_watched`."""
        return not _is_watched()

    def run(self, values: tuple[Any, ...]) -> None:
        """Launch on the kernel's device, whichever is the current one."""
        compiled = self.compiled
        if driver.active.get_current_device() == compiled.device:
            compiled.launch(self.grid, values)
        else:
            with torch.accelerator.device_index(compiled.device):
                compiled.launch(self.grid, values)


_compiled: dict[Any, _Compiled] = {}
"""By device and facts; as many as Triton keeps itself, and as long."""


def _launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    recording = replay.current()
    possible = not kernel.pre_run_hooks
    seen = _seen(args) if possible and not _is_watched() else None
    if seen is None:
        kernel[grid](*args, **meta)
        if recording is not None:
            recording.spoil(for_good=not possible)
        return
    facts, values = seen
    device = driver.active.get_current_device()
    key = (kernel, device, *facts, *meta.items())
    found = _compiled.get(key)
    x, y, z, *_ = (*grid, 1, 1)
    if found is not None:
        found.launch((x, y, z), values)
    else:
        found = _read(kernel, kernel[grid](*args, **meta), device, len(args), meta)
        if found is not None:
            _compiled[key] = found
    if recording is None:
        return
    if found is None:
        recording.spoil()
    else:
        recording.add(_Placed(found, (x, y, z)), args)


def _seen(args: tuple[Any, ...]) -> tuple[list[Any], list[Any]] | None:
    """Return what Triton compiles a kernel for, and the arguments with addresses in the place of tensors.

    None where one is of a type that is not known here.
    """
    facts: list[Any] = []
    values: list[Any] = []
    for value in args:
        kind = type(value)
        if kind is int:
            if value == 1:
                facts.append(1)
            elif -0x80000000 <= value <= 0x7FFFFFFF:
                facts.append(32 if value & 15 else 33)
            else:
                wide = 64 if -_INT64 <= value < _INT64 else 128
                facts.append(wide if value & 15 else wide + 1)
        elif kind in _TENSORS:
            facts.append(value.dtype)
            value = value.data_ptr()
            facts.append(value & 15 == 0)
        elif kind is float or kind is bool:
            facts.append(kind)
        else:
            return None
        values.append(value)
    return facts, values


def _read(kernel: Any, launched: Any, device: int, count: int, meta: dict[str, Any]) -> _Compiled | None:
    """Return what Triton launched as it can be launched again; None where it has not the form that is known.

    `count`: arguments given by place; those behind them are constants that `meta` names.
    """
    if type(launched) is not CompiledKernel or launched.metadata.target.backend != BACKEND:
        return None
    if any(each.is_constexpr for each in kernel.params[:count]):
        return None
    names = [each.name for each in kernel.params[count:]]
    if not all(name in meta for name in names):
        return None
    return _Compiled(launched, device, tuple(meta[name] for name in names))


def _is_watched() -> bool:
    """Return whether Triton has to be asked: a profiler is told of launches, or it would compile another kernel."""
    if _RUNTIME.debug or getattr(_RUNTIME, "add_stages_inspection_hook", None) is not None:
        return True
    # None and an empty chain of hooks listen to nothing.
    enter, leave = _RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook
    return bool(enter and getattr(enter, "calls", True)) or bool(leave and getattr(leave, "calls", True))
