"""What every measured kernel comes down to: calls over rotating buffers, and the error of the first one's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvreg.bench.material import Material
from kvreg.gate.attention import row_errors
from kvreg.oracle import Cache, PlainRows, attention, over_cache
from kvreg_tuning.timing import Call

MOST_BYTES = 16 << 30
"""Cache memory of one contender; rotations beyond it are left out."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One kernel, ready to be timed."""

    calls: Sequence[Call]
    """The same work over different buffers."""
    error: Callable[[], float | None]
    """Runs the first call; worst e of the judged rows against fp64 attention over the rows that the kernel read."""


def result_error(material: Material, out: torch.Tensor, cache: Cache) -> float:
    """Return the worst e of a result over a paged cache, of which `material.page_table` names the first rotation."""
    of = material.judged()
    table = material.page_table[of.sequences]
    due = over_cache(material.q[of.rows], cache, table, of.contexts, of.cu_q, scale=material.scale)
    return float(row_errors(out[of.rows], due)[0].max())


def dense_error(material: Material, out: torch.Tensor) -> float:
    """Return the worst e of a result over the rows as they are."""
    of = material.judged()
    rows = PlainRows(material.k, material.v, material.starts[of.sequences])
    due = attention(material.q[of.rows], rows, of.contexts, of.cu_q, scale=material.scale)
    return float(row_errors(out[of.rows], due)[0].max())


def no_error() -> None:
    """Stand for the error of a write, which the gate judges and no attention."""


def repeat(storage: torch.Tensor, rotations: int) -> None:
    """Give every rotation the bytes of the first; `storage` is (bytes,) with the rotations one behind the other."""
    each = storage.view(rotations, -1)
    each[1:] = each[:1]


def fitting(rotations: int, bytes_each: int) -> int:
    """Return how many rotations fit the memory of one contender."""
    return max(1, min(rotations, MOST_BYTES // max(1, bytes_each)))
