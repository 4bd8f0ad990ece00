"""A kernel variant: one implementation of an op, with a version and everything it requires of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvreg.core.devices import Device
from kvreg.core.errors import UsageError, shown, wrong
from kvreg.core.layouts import known
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Accuracy, Op, Request

_ID = re.compile(r"(?P<name>[a-z0-9][a-z0-9_.-]*)@(?P<version>[1-9][0-9]*)")


@dataclass(frozen=True, slots=True, order=True)
class VariantId:
    """`name@version`; a version changes when results or constraints do."""

    name: str
    version: int

    @classmethod
    def parse(cls, text: str) -> VariantId:
        """Read `triton-int4-decode@1`; raises UsageError for another form."""
        match = _ID.fullmatch(text)
        if match is None:
            remedy = "kvreg select --explain names those of a device"
            raise UsageError(wrong("variant", required="NAME@VERSION", found=shown(text), remedy=remedy))
        return cls(match["name"], int(match["version"]))

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a variant requires; `kvreg.core.constraints.failed` turns each miss into a Reason."""

    head_min: int = 32
    head_max: int = 512
    head_step: int = 8
    dtypes: tuple[str, ...] = ("bf16", "fp16")
    layouts: tuple[str, ...] = known()
    """Of those that the mode can have; a kernel that takes every stride takes all."""
    features: tuple[str, ...] = ("causal",)
    page_min: int = 16
    page_max: int = 544
    page_step: int = 16
    group_max: int = 128
    archs: tuple[str, ...] = ()
    """Archs that it is written for; empty means every arch of the platform."""
    min_capability: tuple[int, int] | None = None
    """CUDA only: least compute capability, e.g. (8, 0) where bf16 needs the matrix unit."""
    needs_fp8: str | None = None
    """fp8 type that Triton must know on the arch (e4m3fn, e4m3fnuz); `e4m3` is the one that the arch's caches hold."""

    def takes_head_size(self, size: int) -> bool:
        """Return whether heads of `size` channels are among those that it serves."""
        return self.head_min <= size <= self.head_max and (size - self.head_min) % self.head_step == 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel implementation of one op for one mode."""

    id: VariantId
    op: Op
    mode: Mode
    family: str
    """What KVREG_BACKEND insists on: triton, torch, ..."""
    accuracy: Accuracy
    launcher: str
    """`module:attribute`, imported on the first call; only then is torch loaded."""
    kernels: tuple[str, ...]
    """`module:function` roots that the kernel hash covers, with all that they call; the launcher is one of them."""
    format: Callable[[Device, int], Format]
    """(device, head_size) -> the stored format, without the layout (layout_id is filled in by select)."""
    default_config: Callable[[Device, Request], Mapping[str, int]]
    """Launch parameters where nothing was tuned."""
    constraints: Constraints = field(default_factory=Constraints)
    matrix_instruction: bool = True
    """Whether the kernel is written for a matrix unit; write and reduce kernels declare none."""
    candidates: Callable[[Device, Request], Sequence[Mapping[str, int]]] | None = None
    """Launch parameters in the order in which a compilation for an arch tries them: the first that is sound there
    becomes the arch's default. None where there is nothing but the default."""
    needs_card: bool = False
    """Whether it holds what no interpreter runs (inline PTX, libdevice, Gluon): only a card's numerics count then."""
    options: tuple[str, ...] = ()
    """Compiler options that the kernel feels and a search tries. A platform's other options are in no space of the
    variant."""
