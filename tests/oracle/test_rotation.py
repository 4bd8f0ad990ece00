"""The rotation's definition: golden signs, the Sylvester matrix, blocks that do not mix."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.modes import ROTATION_SEED
from kvreg.oracle import rotate, signs, unrotate

HEADS = (32, 40, 64, 72, 80, 96, 112, 120, 128, 192, 256, 384, 504, 512)


def sylvester(block: int) -> torch.Tensor:
    """The matrix by doubling, where the oracle counts bits."""
    h = torch.ones((1, 1), dtype=torch.float64)
    while len(h) < block:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return h


def test_first_128_signs_are_the_published_golden_value() -> None:
    bits = "".join("1" if sign < 0 else "0" for sign in signs(128).tolist())

    assert f"{int(bits, 2):032x}" == "4f6531597253fefec943dd9ae3d50129"


@pytest.mark.parametrize("n", [1, 16, 512, 700])
def test_signs_are_those_of_torchs_bernoulli_draws(n: int) -> None:
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    drawn = 2 * torch.bernoulli(torch.full((n,), 0.5), generator=generator) - 1

    assert torch.equal(signs(n), drawn.double())


def test_shorter_sign_vectors_are_prefixes() -> None:
    assert torch.equal(signs(32), signs(512)[:32])


@pytest.mark.parametrize("head", HEADS)
def test_each_block_is_hadamard_times_signs(head: int) -> None:
    block = next(b for b in (512, 256, 128, 64, 32, 16, 8) if head % b == 0)
    x = torch.randn((3, 2, head), dtype=torch.float64, generator=torch.Generator().manual_seed(head))
    matrix = torch.block_diag(*[sylvester(block) * signs(block)] * (head // block))

    torch.testing.assert_close(rotate(x, head), x @ matrix.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_unrotate_undoes_rotate(head: int) -> None:
    x = torch.randn((5, head), dtype=torch.float64)

    torch.testing.assert_close(unrotate(rotate(x, head), head), x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rotate(unrotate(x, head), head), x, rtol=1e-12, atol=1e-12)


def test_head_96_has_blocks_of_32_and_products_grow_by_32() -> None:
    q, k = torch.randn((2, 96), dtype=torch.float64)
    only_last = torch.zeros(96, dtype=torch.float64)
    only_last[95] = 1.0

    assert rotate(only_last, 96)[:64].abs().max() == 0
    assert rotate(only_last, 96)[64:].abs().min() == 1
    torch.testing.assert_close(rotate(q, 96) @ rotate(k, 96), 32 * (q @ k))


def test_rows_are_read_by_their_strides() -> None:
    wide = torch.randn((4, 3, 200), dtype=torch.bfloat16)
    view = wide[:, ::2, 40:136]

    assert torch.equal(rotate(view, 96), rotate(view.contiguous(), 96))
