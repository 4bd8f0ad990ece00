"""Limits of one attention row, with where each number comes from; `kvreg.gate.limits` has all of the gate's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound."""

    value: float
    unit: str
    source: str


EXACT_NORMAL = Limit(
    5e-3,
    "relative error",
    "class exact on N(0,1): a bf16 output alone costs up to 2e-3 (half an ulp is 2^-9); a query rounded to bf16 after "
    "its rotation reaches 6e-3 at head size 128 in 200 seeds and must fail",
)
EXACT_HARD = Limit(
    1e-2,
    "relative error",
    "class exact on hard inputs: bf16 rows themselves reach 6e-3 where one channel is 30x; a query rounded to bf16 "
    "after its rotation reaches 2.4e-2 and must fail",
)
COSINE = Limit(
    0.999,
    "cosine",
    "follows from the hard error limit: rows with |r| >= 0.25 sqrt(sum p^2 |v|^2) and e = 1e-2 are off by an angle of "
    "at most 4e-2, cosine 0.9992; published runs of correct kernels have correlation 1.0000",
)
COSINE_FLOOR = Limit(
    0.25,
    "|r| / sqrt(sum p^2 |v|^2)",
    "below it r is what cancellation has left over and its direction is noise; the relative error judges those rows",
)
