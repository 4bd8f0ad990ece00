"""The randomized Hadamard transform in float32, as a butterfly.

Forward (K, V, q):  y = H_b (D * x)       on each consecutive block of b channels, b = head_size & -head_size
Inverse (output):   x = D * (H_b y) / b   H is symmetric and H_b H_b = b I
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kvreg.core.modes import rotation_block
from kvreg.core.signs import signs


@lru_cache
def _channel_signs(head_size: int) -> torch.Tensor:
    """Return D for every channel, (head_size,) float32: each block takes the same first signs."""
    block = rotation_block(head_size)
    with torch.inference_mode(False):
        return torch.tensor(signs(block) * (head_size // block), dtype=torch.float32)


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return H_block applied to each block of the last axis, in natural (Sylvester) order and without a factor."""
    shape = x.shape
    half = 1
    while half < block:
        pairs = x.reshape(*shape[:-1], shape[-1] // (2 * half), 2, half)
        low, high = pairs.unbind(-2)
        x = torch.stack((low + high, low - high), dim=-2)
        half *= 2
    return x.reshape(shape)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Return the rotated rows of `x` (..., head_size) float32; they grow by the square root of the block."""
    head_size = x.shape[-1]
    return hadamard(x * _channel_signs(head_size), rotation_block(head_size))


def unrotate(y: torch.Tensor) -> torch.Tensor:
    """Return what `rotate` made `y` from, up to rounding."""
    head_size = y.shape[-1]
    block = rotation_block(head_size)
    return hadamard(y, block) * _channel_signs(head_size) / block
