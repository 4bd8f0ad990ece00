"""The two scales of a cache whose rows carry none: one for all of K and one for all of V, in fp8_per_tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

from kvreg.core.errors import CallError, WrongDevice, WrongDtype, WrongShape, shown, wrong
from kvreg.core.modes import Mode
from kvreg.core.scalars import FLOAT32, real
from kvreg.runtime.geometry import Kind

_REMEDY = "pass (k_scale, v_scale), or a (2,) float32 tensor on the cache's device"


def tensor_scales(kind: Kind, given: Any, device: Any) -> torch.Tensor | None:
    """Return the scales of K and V as (2,) float32 on `device`, None in a mode that has none.

    `given`: two positive numbers, or such a tensor, which is used as it is, so that its owner can set it later (a
    model that loads its weights after its caches); None stands for 1.0 and 1.0. A tensor's values are looked at on
    the cpu only. Raises CallError, WrongShape, WrongDtype or WrongDevice.
    """
    if kind.mode is not Mode.FP8_PER_TENSOR:
        if given is not None:
            raise CallError(
                wrong(
                    "tensor_scales",
                    required=f"None in mode {kind.mode}",
                    found=type(given).__name__,
                    remedy=f"leave them out, or select for mode {Mode.FP8_PER_TENSOR}",
                )
            )
        return None
    if isinstance(given, torch.Tensor):
        _check_tensor(given, device)
        return given
    k, v = (1.0, 1.0) if given is None else _numbers(given)
    # Filled there: a copy from the host would make it wait. Ones made under inference mode could not be set outside.
    with torch.inference_mode(False):
        scales = torch.full((2,), k, dtype=torch.float32, device=device)
        if v != k:
            scales[1:].fill_(v)
    return scales


def _numbers(given: Any) -> tuple[float, float]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise CallError(
            wrong(
                "tensor_scales",
                required="two numbers or a tensor",
                found=f"{len(given)} entries" if isinstance(given, (tuple, list)) else type(given).__name__,
                remedy=_REMEDY,
            )
        )
    for value in given:
        number = real(value)
        if number is None or not FLOAT32[0] <= number <= FLOAT32[1]:
            raise _not_positive(type(value).__name__ if number is None else shown(value))
    return float(given[0]), float(given[1])


def _check_tensor(given: torch.Tensor, device: Any) -> None:
    if given.device != device:
        raise WrongDevice(
            wrong(
                "tensor_scales",
                required=f"a tensor on {device}, where the cache lies",
                found=f"one on {given.device}",
                remedy=f"move it: tensor_scales.to({str(device)!r})",
            )
        )
    if given.dtype != torch.float32:
        raise WrongDtype(
            wrong(
                "tensor_scales",
                required=torch.float32,
                found=given.dtype,
                remedy="convert it with tensor_scales.to(torch.float32)",
            )
        )
    if tuple(given.shape) != (2,) or given.stride(0) != 1:
        raise WrongShape(
            wrong(
                "tensor_scales",
                required="shape (2,) with stride 1: the scale of K, then that of V",
                found=f"shape {tuple(given.shape)} with strides {given.stride()}",
                remedy=_REMEDY,
            )
        )
    if given.device.type == "cpu":
        for value in given.tolist():
            if not (math.isfinite(value) and value > 0):
                raise _not_positive(value)


def _not_positive(found: object) -> CallError:
    return CallError(
        wrong(
            "tensor_scales",
            required="finite numbers above 0, as float32 holds them",
            found=found,
            remedy="pass 1.0 where none is known",
        )
    )
