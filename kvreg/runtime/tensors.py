"""What each tensor of a call must be: dense, where the cache is, of the axes, dtype and strides that kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvreg.core.errors import WrongDevice, WrongDtype, WrongShape, wrong
from kvreg.runtime.geometry import MOST_REACH, Kind

_INDEX_DTYPES = (torch.int32, torch.int64)


def require_dense(name: str, value: torch.Tensor) -> None:
    """Raise WrongDtype for a sparse or nested tensor, which has no strides."""
    if value.layout == torch.strided and not value.is_nested:
        return
    raise WrongDtype(
        wrong(
            name,
            required="a dense tensor",
            found="a nested one" if value.is_nested else str(value.layout),
            remedy=f"pass {name}.{'to_padded_tensor(0)' if value.is_nested else 'to_dense()'}",
        )
    )


def placed(name: str, value: Any, device: Any) -> None:
    """Raise WrongDtype unless `value` is a dense tensor, WrongDevice unless it lies on `device`."""
    if not isinstance(value, torch.Tensor):
        raise WrongDtype(
            wrong(
                name,
                required="a torch.Tensor",
                found=type(value).__name__,
                remedy="pass a tensor on the cache's device",
            )
        )
    require_dense(name, value)
    if value.device != device:
        raise WrongDevice(
            wrong(
                name,
                required=f"a tensor on {device}, where the cache lies",
                found=f"one on {value.device}",
                remedy=f"move it: {name}.to({str(device)!r})",
            )
        )


def rows(name: str, value: Any, heads: int, kind: Kind, device: Any) -> None:
    """Raise unless `value` is (rows, heads, head_size) in the model's dtype with adjacent channels."""
    placed(name, value, device)
    shape, strides = value.shape, value.stride()
    if len(shape) != 3 or shape[1] != heads or shape[2] != kind.head_size:
        raise WrongShape(
            wrong(
                name,
                required=f"shape (rows, {heads}, {kind.head_size})",
                found=tuple(shape),
                remedy="reshape it, or select for these head counts and this head size",
            )
        )
    if value.dtype != kind.torch_dtype:
        raise WrongDtype(
            wrong(
                name,
                required=f"{kind.torch_dtype}, as selected",
                found=value.dtype,
                remedy=f"convert it with {name}.to({kind.torch_dtype}), or select for the dtype that you have",
            )
        )
    if strides[2] != 1 and value.numel():
        raise WrongShape(
            wrong(
                name,
                required="stride 1 on the last axis",
                found=f"stride {strides[2]}",
                remedy=f"pass {name}.contiguous()",
            )
        )
    if strides[1] * (heads - 1) > MOST_REACH:
        raise WrongShape(
            wrong(
                name,
                required=f"heads at most {MOST_REACH} elements apart",
                found=strides[1] * (heads - 1),
                remedy=f"pass {name}.contiguous()",
            )
        )


def indexes(name: str, value: Any, device: Any, dtypes: Sequence[Any] = _INDEX_DTYPES) -> int:
    """Return how many there are; raise unless `value` is a one-dimensional tensor of adjacent whole numbers."""
    placed(name, value, device)
    if value.dtype not in dtypes:
        raise WrongDtype(
            wrong(
                name,
                required=" or ".join(str(dtype) for dtype in dtypes),
                found=value.dtype,
                remedy=f"convert it with {name}.to({dtypes[0]})",
            )
        )
    shape = value.shape
    if len(shape) != 1:
        raise WrongShape(wrong(name, required="one dimension", found=f"shape {tuple(shape)}", remedy="flatten it"))
    if shape[0] > 1 and value.stride(0) != 1:
        raise WrongShape(
            wrong(name, required="stride 1", found=f"stride {value.stride(0)}", remedy=f"pass {name}.contiguous()")
        )
    count: int = shape[0]  # a symbol inside torch.compile, which int() would pin
    return count
