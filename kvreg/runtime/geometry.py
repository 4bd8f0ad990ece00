"""A cache without its memory: what was selected, where the bytes lie, and the strided views over a buffer.

A Geometry can be written as text and read back, so that the custom operators, which take tensors and plain values
only, rebuild the views over whatever buffer the compiler hands them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from kvreg.core.errors import WrongCache, wrong
from kvreg.core.layouts import CacheStrides, Plane
from kvreg.core.modes import SCALE_BYTES, Mode
from kvreg.core.requests import Op
from kvreg.core.selections import Chosen, Selection
from kvreg.runtime.launchers import CacheView

TORCH_DTYPES: dict[str, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""torch's type for each model dtype word of a request."""

DRAFT_ROWS = 8
"""Query rows a sequence that decode splits with feature multi_query_split: up to 7 drafted tokens and their last."""

MOST_REACH = (1 << 31) - 1
"""Elements between the first and the last head, slot of a page or value of a row: kernels multiply these small numbers
by their strides in 32 bits; pages and rows they take in 64."""

WIDEST_ALIGNMENT = 16
"""Bytes of the widest load that a GPU thread issues; a larger alignment brings nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """The winner of one op: what is launched, and with which parameters."""

    variant: str
    launcher: str
    config: Mapping[str, int]
    default_config: Mapping[str, int]
    """What `batch_invariant=True` and equal shares launch with: it depends on no batch and no tuning."""

    @classmethod
    def of(cls, chosen: Chosen) -> Step:
        """Return the step that a selection chose."""
        default = chosen.config if chosen.default_config is None else chosen.default_config
        return cls(chosen.variant, chosen.launcher, dict(chosen.config), dict(default))


@dataclass(frozen=True, slots=True)
class Kind:
    """What layers that may share one plan have in common; where their bytes lie is no part of it."""

    device: str
    """Key of the device that was selected for."""
    platform: str
    compute_units: int | None
    mode: Mode
    layout: str
    fp8: str | None
    storage: str
    """torch dtype of the stored values; `none` stores the model's dtype."""
    head_size: int
    q_heads: int
    kv_heads: int
    page: int
    """Token slots of a page."""
    dtype: str
    """Model dtype: bf16, fp16 or fp32."""
    features: tuple[str, ...]
    write: Step
    decode: Step
    prefill: Step

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row of values, without its scale."""
        return self.mode.row_bytes(self.head_size, self.dtype)

    @property
    def decode_rows(self) -> int:
        """Query rows a sequence, on average, up to which a batch goes to decode: several where drafts are verified."""
        return DRAFT_ROWS if "multi_query_split" in self.features else 1

    @property
    def torch_dtype(self) -> Any:
        """The model's dtype as torch has it."""
        return TORCH_DTYPES[self.dtype]

    @property
    def stored_dtype(self) -> Any:
        """The torch dtype that K and V rows are viewed as."""
        return self.torch_dtype if self.mode is Mode.NONE else getattr(torch, self.storage)


_KINDS: dict[str, Kind] = {}
"""Every kind that was made, by its text: equal kinds are one object, so that comparing them costs nothing and layers
that differ in memory only share one compiled graph."""


def kind_of(selection: Selection) -> Kind:
    """Return what a cache for `selection` is.

    Raises WrongCache for a selection of several modes or without a winner for every op, Refused for a refused one.
    """
    if not isinstance(selection, Selection):
        raise WrongCache(
            wrong(
                "selection",
                required="a Selection",
                found=type(selection).__name__,
                remedy="ask kvreg.select for one",
            )
        )
    if len(selection.results) != 1:
        raise WrongCache(
            wrong(
                "selection",
                required="one mode",
                found=", ".join(result.mode for result in selection.results) or "none",
                remedy="ask kvreg.select for one mode by name",
            )
        )
    result, request, device = selection.result, selection.request, selection.resolution.device
    missing = [op for op in Op if op not in result.ops]
    if missing:
        raise WrongCache(
            wrong(
                "selection",
                required="a winner for write, decode and prefill",
                found=f"none for {', '.join(missing)}",
                remedy="ask kvreg.select again",
            )
        )
    kind = Kind(
        device=device.key,
        platform=device.platform,
        compute_units=device.compute_units,
        mode=result.mode,
        layout=str(result.layout),
        fp8=result.format.fp8,
        storage=result.format.storage,
        head_size=request.head_size,
        q_heads=request.q_heads,
        kv_heads=request.kv_heads,
        page=request.page,
        dtype=request.dtype,
        features=tuple(request.features),
        write=Step.of(result.ops[Op.WRITE]),
        decode=Step.of(result.ops[Op.DECODE]),
        prefill=Step.of(result.ops[Op.PREFILL]),
    )
    return interned(kind)


def interned(kind: Kind) -> Kind:
    """Return the one object that stands for every kind equal to `kind`."""
    return _KINDS.setdefault(json.dumps(asdict(kind), sort_keys=True), kind)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A kind, a number of pages and the place of every plane, in bytes from the first byte of the buffer."""

    kind: Kind
    pages: int
    strides: CacheStrides

    def planes(self) -> tuple[tuple[str, Plane, int], ...]:
        """Return (name, plane, bytes of one element) of each plane that the mode has, values before scales."""
        values, strides = self.kind.row_bytes, self.strides
        found: list[tuple[str, Plane, int]] = [("K rows", strides.k, values), ("V rows", strides.v, values)]
        if strides.k_scale is not None:
            found.append(("K scales", strides.k_scale, SCALE_BYTES))
        if strides.v_scale is not None:
            found.append(("V scales", strides.v_scale, SCALE_BYTES))
        return tuple(found)

    def view(self, buffer: torch.Tensor, tensor_scales: torch.Tensor | None = None) -> CacheView:
        """Return the strided views over `buffer`, flat uint8 whose first element is the cache's first byte.

        `tensor_scales`: (2,) float32, what fp8_per_tensor multiplies K and V by; None in every other mode.
        """
        kind, strides = self.kind, self.strides
        k = self._plane(buffer, strides.k, kind.row_bytes, kind.stored_dtype)
        v = self._plane(buffer, strides.v, kind.row_bytes, kind.stored_dtype)
        return CacheView(
            mode=kind.mode,
            head_size=kind.head_size,
            kv_heads=kind.kv_heads,
            page=kind.page,
            k=k,
            v=v,
            k_scale=self._scales(buffer, strides.k_scale),
            v_scale=self._scales(buffer, strides.v_scale),
            alignment=_alignment(k.data_ptr(), v.data_ptr(), strides.k, strides.v),
            tensor_scales=tensor_scales,
        )

    def _plane(self, buffer: torch.Tensor, plane: Plane, width: int, dtype: Any) -> torch.Tensor:
        raw = torch.as_strided(
            buffer,
            (self.pages, self.kind.page, self.kind.kv_heads, width),
            (plane.page, plane.slot, plane.head, plane.value or 1),
            buffer.storage_offset() + plane.offset,
        )
        return raw.view(dtype)

    def _scales(self, buffer: torch.Tensor, plane: Plane | None) -> torch.Tensor | None:
        return None if plane is None else self._plane(buffer, plane, SCALE_BYTES, torch.float32).squeeze(-1)

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=1024)
def parse(text: str) -> Geometry:
    """Return the geometry that `str(geometry)` wrote."""
    fields = json.loads(text)
    kind, planes = fields["kind"], fields["strides"]
    kind |= {op.value: Step(**kind[op.value]) for op in Op}
    kind |= {"mode": Mode(kind["mode"]), "features": tuple(kind["features"])}
    planes |= {name: Plane(**planes[name]) for name in ("k", "v", "k_scale", "v_scale") if planes[name] is not None}
    return Geometry(Kind(**kind), fields["pages"], CacheStrides(**planes))


def _alignment(k: int, v: int, *planes: Plane) -> int:
    """Return the largest power of two, at most 16, that divides the addresses `k`, `v` and every byte stride.

    Where a row's values lie apart, its tokens are adjacent, and a load takes those.
    """
    together = k | v | WIDEST_ALIGNMENT
    for plane in planes:
        together |= plane.page | (plane.value or plane.slot) | plane.head
    return together & -together
