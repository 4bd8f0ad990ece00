"""Output buffers in which everything that a kernel did not write, and everything it should not have, can be told.

A buffer is filled with a nan whose payload no arithmetic produces. Where it is found afterwards nobody has written;
another nan was computed. A guard row on either side must stay as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_PATTERNS = {
    torch.bfloat16: (torch.int16, 0x7FE5),
    torch.float16: (torch.int16, 0x7E25),
    torch.float32: (torch.int32, 0x7FC0A5A5),
}


def poisoned(x: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor: where `x` still holds the poison."""
    of, pattern = _PATTERNS[x.dtype]
    return x.contiguous().view(of) == pattern


@dataclass(frozen=True, slots=True)
class Buffer:
    """A poisoned buffer with one guard row in front and one behind."""

    whole: torch.Tensor

    @property
    def inner(self) -> torch.Tensor:
        """The rows that a kernel is given."""
        return self.whole[1:-1]

    def fill(self) -> None:
        """Poison all of it again."""
        of, pattern = _PATTERNS[self.whole.dtype]
        self.whole.view(of).fill_(pattern)

    def guards_written(self) -> torch.Tensor:
        """Return, as a tensor, how many guard elements no longer hold the poison."""
        return (~poisoned(self.whole[:1])).sum() + (~poisoned(self.whole[-1:])).sum()


def buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Buffer:
    """Return a poisoned buffer whose inner part has `shape`; `dtype`: bfloat16, float16 or float32."""
    rows, *rest = shape
    made = Buffer(torch.empty((rows + 2, *rest), dtype=dtype, device=device))
    made.fill()
    return made
