"""KVCache: one layer's memory, made for one selection."""

from __future__ import annotations

import os
from typing import Any

import torch

from kvreg.core import layouts
from kvreg.core.errors import CallError, DeviceUnavailable, WrongDevice, WrongDtype, WrongShape, wrong
from kvreg.core.layouts import CacheStrides, LayoutId
from kvreg.core.modes import Mode
from kvreg.core.scalars import whole
from kvreg.core.selections import Selection
from kvreg.runtime import buffers, given_strides
from kvreg.runtime.geometry import Geometry, Kind, interned, kind_of
from kvreg.runtime.launchers import CacheView
from kvreg.runtime.replay import Known
from kvreg.runtime.tensor_scales import tensor_scales as scales_of

_TORCH_TYPES = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "cpu": "cpu"}
"""torch's device type for each platform; a plug-in's platform goes by its own name."""


class KVCache:
    """One layer's K and V in the mode, layout and dtype of a selection; make it with `allocate` or `from_buffer`."""

    __slots__ = ("buffer", "device", "geometry", "kind", "known", "selection", "spec", "view")

    buffer: torch.Tensor
    """(bytes,) uint8: the raw memory, its first element the cache's first byte."""
    device: torch.device
    geometry: Geometry
    kind: Kind
    known: Known | None
    """The calls of write and attend that were made on this cache; None where they are never made again: on the cpu
    values are checked each time, and meta has no addresses."""
    selection: Selection
    spec: str
    """The geometry as text, which the custom operators take."""
    view: CacheView
    """Strided views over `buffer`, and `tensor_scales` in fp8_per_tensor."""

    def __init__(
        self, selection: Selection, geometry: Geometry, buffer: torch.Tensor, tensor_scales: Any = None
    ) -> None:
        self.selection = selection
        self.geometry = geometry
        self.kind = geometry.kind
        self.buffer = buffer
        self.device = buffer.device
        scales = scales_of(geometry.kind, tensor_scales, buffer.device)
        # Views of another dtype made under inference mode could not be written outside of it.
        with torch.inference_mode(False):
            self.view = geometry.view(buffer, scales)
        self.spec = str(geometry)
        self.known = None if buffer.device.type in ("cpu", "meta") else Known()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and files hold: the bytes once; views are made over them anew."""
        return _restored, (self.selection, self.geometry, self.buffer, self.view.tensor_scales)

    @classmethod
    def allocate(cls, selection: Selection, pages: int, *, device: Any = None, tensor_scales: Any = None) -> KVCache:
        """Return a cache of `pages` pages in new memory, zeroed once here and never by a later call.

        `device` is a torch device or its name; None takes the selection's platform. `tensor_scales`, in mode
        fp8_per_tensor only: what stored K and V are multiplied by, two positive numbers or a (2,) float32 tensor on
        the device, which the cache then shares with its owner; None stands for 1.0.

        Raises Refused for a refused selection, WrongDevice for a device of another platform or arch, WrongDtype for
        int4 in bf16 under Triton's interpreter,
        DeviceUnavailable when torch sees none, OutOfMemory when it has no room for so many pages, CallError for scales
        that are none.
        """
        kind = kind_of(selection)
        pages = _page_count(pages)
        place = _place(kind, selection.resolution.device.arch, device)
        strides = _dense(kind)
        buffer = buffers.zeroed(pages, strides.page_bytes, place)
        return cls(selection, Geometry(kind, pages, strides), buffer, tensor_scales)

    @classmethod
    def from_buffer(
        cls,
        selection: Selection,
        tensor: torch.Tensor,
        strides: CacheStrides | None = None,
        *,
        pages: int | None = None,
        tensor_scales: Any = None,
    ) -> KVCache:
        """Return a cache over the memory of `tensor`, which is neither copied nor cleared.

        Byte offsets count from the tensor's first element; its dtype is not looked at. Without `strides` a
        two-dimensional tensor has one page a row (rows may be longer than a page and apart from each other), any other
        must be contiguous and holds dense pages of the selection's layout. With `strides` any tensor will do; a plane
        may lie anywhere between its first and last element. `pages` defaults to all that fit.
        `tensor_scales`: as in `allocate`.

        Raises WrongCache when strides are no ints, when a plane leaves the tensor, is not aligned (scales to 4 bytes,
        rows to their values, of 8 bits to 2 bytes) or shares bytes with another, WrongShape when no page fits,
        WrongDevice for memory of another platform or arch.
        """
        kind = kind_of(selection)
        if not isinstance(tensor, torch.Tensor):
            raise WrongDtype(
                wrong(
                    "buffer", required="a torch.Tensor", found=type(tensor).__name__, remedy="wrap the memory in one"
                )
            )
        _check_device(kind, selection.resolution.device.arch, tensor.device)
        with torch.inference_mode(False):
            buffer = buffers.raw(tensor)
        if strides is None:
            strides, fitting = given_strides.read_strides(kind, tensor, _dense(kind))
        else:
            strides = given_strides.whole_strides(strides)
            fitting = buffers.pages_that_fit(kind, strides, buffer.numel())
        if pages is None:
            if fitting < 1:
                raise WrongShape(
                    wrong(
                        "buffer",
                        required=f"at least one page of {strides.page_bytes} bytes",
                        found=f"{buffer.numel()} bytes",
                        remedy="pass more memory",
                    )
                )
            pages = fitting
        pages = _page_count(pages)
        geometry = Geometry(kind, pages, strides)
        buffers.check(geometry, buffer)
        return cls(selection, geometry, buffer, tensor_scales)

    @property
    def mode(self) -> Mode:
        """The quantization mode."""
        return self.kind.mode

    @property
    def layout(self) -> LayoutId:
        """The layout id of the selection; foreign strides keep its bytes but not its places."""
        return LayoutId.parse(self.kind.layout)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return self.geometry.pages

    @property
    def slots(self) -> int:
        """Number of token slots: pages times the page size."""
        return self.geometry.pages * self.kind.page

    @property
    def dtype(self) -> Any:
        """torch dtype of q, k, v and the output."""
        return self.kind.torch_dtype

    def __repr__(self) -> str:
        kind = self.kind
        return (
            f"KVCache({kind.mode}, {kind.layout}, head size {kind.head_size}, {kind.kv_heads} KV heads, "
            f"{self.pages} pages of {kind.page}, {kind.dtype}, {self.device})"
        )


def _restored(selection: Selection, geometry: Geometry, buffer: torch.Tensor, tensor_scales: Any) -> KVCache:
    kind = interned(geometry.kind)  # plans know their caches' kind by its identity
    return KVCache(selection, Geometry(kind, geometry.pages, geometry.strides), buffer, tensor_scales)


def _dense(kind: Kind) -> CacheStrides:
    return layouts.strides(
        LayoutId.parse(kind.layout), kind.mode, kind.head_size, kind.kv_heads, kind.page, kind.dtype
    )


def _page_count(pages: object) -> int:
    count = None if isinstance(pages, torch.Tensor) else whole(pages)
    if count is None:
        raise CallError(
            wrong("pages", required="an int", found=type(pages).__name__, remedy="pass the number of pages")
        )
    if count < 1:
        raise WrongShape(wrong("pages", required="at least 1", found=count, remedy="pass the number of pages"))
    return count


def _interpreted() -> bool:
    """Whether Triton's interpreter stands in for the card; it takes tensors on the cpu."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _place(kind: Kind, arch: str, device: Any) -> torch.device:
    """Return the torch device to allocate on; raises WrongDevice or DeviceUnavailable."""
    wanted = _TORCH_TYPES.get(kind.platform, kind.platform)
    if device is None:
        device = "cpu" if _interpreted() else wanted
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise WrongDevice(
            wrong("device", required="a torch device", found=repr(device), remedy=f"pass one such as {wanted!r}")
        ) from error
    module = getattr(torch, place.type, None)
    if place.type != "cpu" and place.type == wanted and not (module and module.is_available()):
        raise DeviceUnavailable(
            wrong(
                f"device {place}",
                required=f"a {kind.platform} card for {kind.device}",
                found="none that torch sees",
                remedy="run kvreg doctor, or select for device 'cpu'",
            )
        )
    _check_device(kind, arch, place)
    return place


def _check_device(kind: Kind, arch: str, place: torch.device) -> None:
    """Raise WrongDevice unless `place` is of the platform and arch that was selected for."""
    wanted = _TORCH_TYPES.get(kind.platform, kind.platform)
    if place.type != wanted and not (place.type == "cpu" and _interpreted()):
        raise WrongDevice(
            wrong(
                "cache",
                required=f"memory on {wanted}, as selected for {kind.device}",
                found=str(place),
                remedy="pass such memory, or select for the device that it lies on",
            )
        )
    if place.type == "cpu" and wanted != "cpu":
        _check_interpretable(kind)
    found = _arch(kind.platform, place)
    if found is not None and found != arch.partition(":")[0].rstrip("af" if kind.platform == "cuda" else ""):
        raise WrongDevice(
            wrong(
                "cache",
                required=f"a card of {arch}, as selected for {kind.device}",
                found=f"{found} ({torch.cuda.get_device_name(place)})",
                remedy="select for the card at hand: kvreg doctor names it",
            )
        )


def _check_interpretable(kind: Kind) -> None:
    """Raise WrongDtype for what Triton's interpreter gets wrong: products of bf16 matrices.

    Portable kernels multiply in float32 there; those of one platform that rotate rows do not.
    """
    if kind.dtype != "bf16" or kind.mode is not Mode.INT4_PER_TOKEN_HEAD:
        return
    own = [step.variant for step in (kind.write, kind.decode, kind.prefill) if "kvreg_triton." not in step.launcher]
    if own:
        raise WrongDtype(
            wrong(
                "cache",
                required=f"dtype fp16 of {own[0]} under TRITON_INTERPRET, which multiplies bf16 matrices wrongly",
                found="bf16",
                remedy="select with dtype='fp16', or for device 'cpu'",
            )
        )


def _arch(platform: str, place: torch.device) -> str | None:
    """Return the arch of a CUDA or ROCm card, None where torch does not tell."""
    if place.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(place)
    if platform == "rocm":
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
