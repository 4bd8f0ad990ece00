"""The values that kernels are tried with: N(0,1), and rows that are hard to quantize or to add up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvreg.core.modes import rotation_block

INPUTS = ("normal", "q4", "channel30", "one_sided")
"""Input kinds: N(0,1); the query times 4 (peaked softmax); one channel of K and V times 30; one-sided K and V rows.

`channel30` takes channel 7 * seed modulo the head size. In `one_sided` K and V are |N(0,1)|, and every other row,
the first one included, has 5 sqrt(b) more in the first channel of each rotation block b. That channel's Hadamard
column is all ones, so those rows are one-sided when rotated too, the case in which a range without 0 saturates.
"""
HARD = frozenset(INPUTS[1:])
"""The kinds that the hard limit of a class is for."""


@dataclass(frozen=True, slots=True)
class Values:
    """The rows of one sequence, in float32 before they are rounded to the model's dtype."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def values(
    kind: str,
    *,
    context: int,
    queries: int,
    q_heads: int,
    kv_heads: int,
    head_size: int,
    seed: int,
    device: torch.device | str,
) -> Values:
    """Return the values of one sequence, the same for the same arguments on the same kind of device.

    K and V do not depend on `queries` and `q_heads`: batches that differ in group or kind store the same rows.
    Shapes: q (queries, q_heads, head_size), k and v (context, kv_heads, head_size). Raises KeyError for a kind that
    is not in INPUTS.
    """
    number = {name: i for i, name in enumerate(INPUTS)}[kind]
    generator = torch.Generator(device=device).manual_seed((seed * 4 + number) * 1_000_003 + context)

    def normal(rows: int, heads: int) -> torch.Tensor:
        return torch.randn((rows, heads, head_size), generator=generator, device=device)

    k, v, q = normal(context, kv_heads), normal(context, kv_heads), normal(queries, q_heads)
    if kind == "q4":
        q *= 4
    elif kind == "channel30":
        channel = 7 * seed % head_size
        k[..., channel] *= 30
        v[..., channel] *= 30
    elif kind == "one_sided":
        block = rotation_block(head_size)
        for side in (k, v):
            side.abs_()
            side[::2, :, ::block] += 5 * block**0.5
    return Values(q, k, v)
