"""Comparing attention outputs without a tolerance that depends on their size: the error e and the cosine of each row.

For a row a of the output and the row x that it should be

    e = |a - x| / max(|x|, spread, least)   spread = sqrt(sum p^2 |v|^2), where it is known

The second term keeps an x that cancels from hiding behind its own smallness. The third is a row of the smallest normal
numbers of the output's type: below those it keeps no relative precision, in fp16 from 6.1e-5 on. Zeros, the mean and
exchanged rows have an e near 1 whatever the scale, so no limit that a right kernel needs lets them pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kvreg.testing.row_limits import COSINE, COSINE_FLOOR, EXACT_NORMAL


def row_errors(
    actual: torch.Tensor, expected: torch.Tensor, spread: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (e, cosine), each (...) float64, of rows (..., head_size); `spread`: (...).

    e is inf where `actual` is not finite and `expected` is, or the reverse, and 0 where neither is. The cosine is 1
    where the expected row is too small for a direction, against its spread (`COSINE_FLOOR`) or for its type.
    """
    a, x = actual.to(torch.float64), expected.to(torch.float64)
    size = torch.linalg.vector_norm(x, dim=-1)
    scale = torch.zeros_like(size) if spread is None else spread.to(torch.float64)
    least = torch.finfo(actual.dtype).tiny * math.sqrt(x.shape[-1])
    floor = torch.maximum(size, scale)
    floor = torch.where(floor > 0, floor.clamp(min=least), floor)
    e = torch.linalg.vector_norm(a - x, dim=-1) / floor
    e = torch.where((floor == 0) & (a == 0).all(-1), 0.0, e)
    same = ~x.isfinite().all(-1) & ~a.isfinite().all(-1)
    e = torch.where(same, 0.0, e).nan_to_num_(nan=float("inf"), posinf=float("inf"))

    cosine = (a * x).sum(-1) / (torch.linalg.vector_norm(a, dim=-1) * size)
    cosine = cosine.nan_to_num_(nan=-1.0, posinf=-1.0, neginf=-1.0)
    judged = (size > COSINE_FLOOR.value * scale) & (size > least)
    return e, torch.where(judged, cosine, 1.0)


def assert_attention_close(
    actual: Any,
    expected: Any,
    *,
    spread: Any = None,
    limit: float = EXACT_NORMAL.value,
    cosine: float = COSINE.value,
) -> None:
    """Raise AssertionError unless every row has e at most `limit` and a cosine of at least `cosine`.

    `actual`, `expected`: torch tensors or numpy arrays (..., head_size) of one shape, any dtypes and devices; a row is
    the last axis. `spread`: (...), `kvreg.oracle.Reference.spread`; without it a row whose values cancel is judged by
    what is left of it, which is stricter. `limit`: 5e-3 suits N(0,1) inputs and 1e-2 hard ones, a bf16 output included
    (`row_limits` has the sources). Expected rows of zeros demand zeros; expected rows must be finite, and there must
    be one. The message names the worst row.
    """
    __tracebackhide__ = True
    due = _tensor(expected)
    found = _tensor(actual).to(due.device)
    if found.shape != due.shape or due.dim() == 0 or due.numel() == 0:
        raise AssertionError(
            f"attention: required the shape of expected, {tuple(due.shape)}, with one row at least, "
            f"found {tuple(found.shape)}"
        )
    if not bool(due.isfinite().all()):
        raise AssertionError("attention: required finite expected values, found nan or inf; correct the reference")
    e, angle = row_errors(found, due, None if spread is None else _tensor(spread).to(due.device))
    wrong = (e > limit) | (angle < cosine)
    if bool(wrong.any()):
        raise AssertionError(_difference(found, due, e, angle, wrong, limit, cosine))


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    # By way of float64: torch reads no array of ml_dtypes' bfloat16.
    return torch.as_tensor(values.astype("float64"))


def _difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    e: torch.Tensor,
    angle: torch.Tensor,
    wrong: torch.Tensor,
    limit: float,
    cosine: float,
) -> str:
    """Return the message about the row with the largest e, or the least cosine where every e is within its limit."""
    flat = int(e.argmax()) if bool((e > limit).any()) else int(angle.argmin())
    row = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), e.shape)) if e.dim() else ()
    sizes = [float(torch.linalg.vector_norm(x[row].to(torch.float64))) for x in (actual, expected)]
    return (
        f"attention: {int(wrong.sum())} of {e.numel()} rows are wrong; worst row {list(row)}: "
        f"e {float(e[row]):.3g}, required at most {limit:.3g}; "
        f"cosine {float(angle[row]):.6f}, required at least {cosine:g}; "
        f"length {sizes[0]:.3g}, expected {sizes[1]:.3g}"
    )
