"""The comparisons that the audit knows: how each is called, and its tensors as arrays of plain numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tolerance = tuple[float, float]
"""(rtol, atol)."""

_TORCH_DEFAULTS: dict[str, Tolerance] = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""What torch.testing.assert_close takes when it is given no tolerance, as its documentation lists it; else exact."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A function that compares, and how it is called."""

    module: str
    name: str
    parameters: tuple[str, str]
    """Names of what was found and what is due; rtol and atol are the third and fourth, or named."""
    defaults: Tolerance | None
    """None: by dtype, as torch does."""
    takes_apart: bool = False
    """Whether it compares the members of lists and mappings one by one; numpy makes one array of a list."""
    is_question: bool = False
    """It returns True or False, and code that is no test asks it too: judged only where a test file itself asks."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


KNOWN = (
    Comparison("torch.testing", "assert_close", ("actual", "expected"), None, takes_apart=True),
    Comparison("numpy.testing", "assert_allclose", ("actual", "desired"), (1e-7, 0.0)),
    Comparison("torch", "allclose", ("input", "other"), (1e-5, 1e-8), is_question=True),
    Comparison("numpy", "allclose", ("a", "b"), (1e-5, 1e-8), is_question=True),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arrays that were compared."""

    actual: Any
    expected: Any
    rtol: float
    atol: float
    eps: float
    """Rounding of the coarser dtype."""


def pairs(comparison: Comparison, arguments: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Pair | None]:
    """Yield what one call compared, containers as the function takes them; None for what is no array of numbers."""
    given = dict(zip((*comparison.parameters, "rtol", "atol"), arguments, strict=False)) | dict(named)
    compared = [given.get(name) for name in comparison.parameters]
    for actual, expected in _leaves(*compared) if comparison.takes_apart else [compared]:
        found, due = _array(actual), _array(expected)
        if found is None or due is None:
            yield None
            continue
        (a, a_type, a_eps), (x, x_type, x_eps) = found, due
        rtol, atol = comparison.defaults or max(_TORCH_DEFAULTS.get(name, (0.0, 0.0)) for name in (a_type, x_type))
        rtol, atol = (
            float(default if given.get(name) is None else given[name])
            for name, default in (("rtol", rtol), ("atol", atol))
        )
        yield Pair(a, x, rtol, atol, max(a_eps, x_eps))


def _leaves(actual: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of two structures of one form; the comparison has passed, so their forms agree."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        for key in actual:
            yield from _leaves(actual[key], expected[key])
    elif _is_container(actual) and _is_container(expected):
        for one, other in zip(actual, expected, strict=True):
            yield from _leaves(one, other)
    else:
        yield actual, expected


def _is_container(value: Any) -> bool:
    """Return whether a value is a list that holds more than numbers: numpy's numbers have a shape too, `()`."""
    return isinstance(value, list | tuple) and any(
        getattr(each, "shape", ()) != () or _is_container(each) for each in value
    )


def _array(value: Any) -> tuple[Any, str, float] | None:
    """Return (array, dtype's name, eps) of a tensor or of what numpy takes; None for what neither reads."""
    import numpy as np

    torch = sys.modules.get("torch")
    try:
        if torch is not None and _are_tensors(value, torch):
            value = torch.stack(tuple(value))
        if torch is not None and isinstance(value, torch.Tensor):
            kind = value.dtype
            wide = torch.complex128 if kind.is_complex else torch.float64 if kind.is_floating_point else kind
            eps = torch.finfo(kind).eps if kind.is_complex or kind.is_floating_point else 0.0
            return value.detach().resolve_conj().cpu().to(wide).numpy(), str(kind).removeprefix("torch."), eps
        array = np.asarray(value)
        return array, array.dtype.name, 0.0
    except (RuntimeError, TypeError, ValueError):  # sparse, quantized, nested and meta tensors; ragged lists
        return None


def _are_tensors(value: Any, torch: Any) -> bool:
    """Return whether a value is a list of nothing but tensors."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, torch.Tensor) for each in value)
