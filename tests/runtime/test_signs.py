"""The sign vector of the rotation, against what torch and numpy draw."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.modes import ROTATION_SEED
from kvreg.core.signs import signs

GOLDEN = "4f6531597253fefec943dd9ae3d50129"
"""The first 128 signs of vLLM's vector, most significant bit first, 1 for minus."""


def test_the_first_128_signs_are_vllms():
    bits = "".join("1" if sign < 0 else "0" for sign in signs(128))

    assert f"{int(bits, 2):032x}" == GOLDEN


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128, 256, 512])
def test_the_signs_are_those_that_torch_draws(size):
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    drawn = 2 * torch.bernoulli(torch.full((size,), 0.5), generator=generator) - 1

    # torch's true is where its draw lies below one half, vLLM's minus is the other case.
    assert signs(size) == tuple(int(sign) for sign in drawn)


def test_shorter_vectors_are_prefixes_of_longer_ones():
    assert all(signs(512)[:size] == signs(size) for size in (1, 8, 40, 256))
