"""An output has memory of its own, or the call is refused before anything is written."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.errors import CallError
from kvreg.runtime.overlaps import require_own_memory

SHAPE = (4, 2, 8)
"""Rows, heads, values: 16 values a row."""
BUFFER = torch.zeros(64, dtype=torch.uint8)


def q_in(memory: torch.Tensor, first: int = 0) -> torch.Tensor:
    return memory[first : first + 64].view(SHAPE)


def columns(of: int, *first: int) -> tuple[torch.Tensor, ...]:
    """Tensors side by side in rows of `of` values, as a fused projection leaves them."""
    whole = torch.zeros(4, of)
    return tuple(whole[:, place : place + 16].view(SHAPE) for place in first)


@pytest.mark.parametrize("make", [
    lambda memory: (q_in(memory), q_in(memory, 64)),
    lambda memory: (q_in(memory, 64), q_in(memory)),
    lambda memory: (q_in(memory), q_in(memory, 64).transpose(0, 1).contiguous().transpose(0, 1)),
    lambda memory: columns(48, 0, 32),
    lambda memory: columns(32, 16, 0),
    lambda memory: (q_in(memory)[:0], q_in(memory)[:0]),
    lambda memory: (q_in(memory)[:1], q_in(memory, 16)[:1]),
], ids=["behind", "before", "heads first", "columns", "columns before", "no rows", "one row"])  # fmt: skip
def test_memory_apart_is_taken(make) -> None:
    q, out = make(torch.zeros(200))

    require_own_memory(out, q, BUFFER)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda memory: (q_in(memory), q_in(memory)), "q's bytes"),
        (lambda memory: (q_in(memory), q_in(memory, 16)), "q's bytes"),
        (lambda memory: (q_in(memory, 63), q_in(memory)), "q's bytes"),
        (lambda memory: columns(48, 0, 8), "q's bytes"),
        (lambda memory: columns(48, 24, 16), "q's bytes"),
        (lambda memory: (q_in(memory), memory[64:80].view(1, 2, 8).expand(SHAPE)), "rows and heads apart"),
        (lambda memory: (q_in(memory), memory[64:].as_strided(SHAPE, (16, 4, 1))), "rows and heads apart"),
        (lambda memory: (q_in(memory), BUFFER.view(torch.float32).as_strided((1, 2, 8), (16, 8, 1))), "cache's bytes"),
    ],
    ids=[
        "q itself",
        "a row on",
        "its last value",
        "half a column",
        "half a column before",
        "expanded",
        "heads overlap",
        "the cache",
    ],
)
def test_shared_memory_is_refused(make, says) -> None:
    q, out = make(torch.zeros(200))

    with pytest.raises(CallError, match=f"^out: required memory of its own: .*{says}.*; pass torch.empty_like"):
        require_own_memory(out, q, BUFFER)
