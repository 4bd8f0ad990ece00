"""The rotation by its definition: an explicit block-diagonal matrix in fp64, no butterfly.

On each consecutive block of b channels, b the largest power of two that divides the head size, y = H (D ∘ x) with
H[i][j] = (-1)^popcount(i & j), unnormalised, and D the first b signs. H H = b I, so x = D ∘ (H y) / b.
"""

from __future__ import annotations

import torch

from kvreg.core.modes import rotation_block
from kvreg.oracle.signs import signs

_forward: dict[tuple[int, torch.device], torch.Tensor] = {}


def block_matrix(block: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the (block, block) float64 matrix R with y = R x for one block."""
    key = (block, torch.device(device))
    if key not in _forward:
        h = [[-1.0 if (i & j).bit_count() & 1 else 1.0 for j in range(block)] for i in range(block)]
        _forward[key] = torch.tensor(h, dtype=torch.float64, device=device) * signs(block, device)
    return _forward[key]


def rotate(x: torch.Tensor, head_size: int) -> torch.Tensor:
    """Return the rotated rows in float64; `x`: (..., head_size), any dtype and strides."""
    block = rotation_block(head_size)
    blocks = x.to(torch.float64).reshape(*x.shape[:-1], head_size // block, block)
    return (blocks @ block_matrix(block, x.device).T).reshape(x.shape)


def unrotate(y: torch.Tensor, head_size: int) -> torch.Tensor:
    """Return the rows that `rotate` made `y` of, in float64; `y`: (..., head_size)."""
    block = rotation_block(head_size)
    blocks = y.to(torch.float64).reshape(*y.shape[:-1], head_size // block, block)
    # R is H diag(D), so its inverse is its transpose over b; the row-vector form multiplies by R itself.
    return (blocks @ (block_matrix(block, y.device) / block)).reshape(y.shape)
