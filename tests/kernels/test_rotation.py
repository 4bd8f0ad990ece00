"""The rotation of the kernels against explicit matrices in fp64."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kvreg.oracle import rotate
from kvreg_cuda.unit_rotation import lines, load_lines, rotated
from kvreg_triton.rotation import hadamard, signs


@triton.jit
def rotate_rows(
    x, y, ROWS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr
):
    channel = tl.arange(0, WIDTH)
    at = tl.arange(0, ROWS)[:, None] * HEAD + channel[None, :]
    inside = (channel < HEAD)[None, :]
    rows = tl.load(x + at, mask=inside, other=0.0)
    tl.store(y + at, hadamard(rows * signs(WIDTH, BLOCK)[None, :], ROWS, WIDTH, BLOCK, LEVELS), mask=inside)


@triton.jit
def rotate_rows_on_units(
    x, y, ROWS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr
):
    """The last row is not asked for."""
    channel = tl.arange(0, WIDTH)
    line = lines(ROWS, WIDTH)
    rows = load_lines(x + line * HEAD, line < ROWS - 1, HEAD, ROWS, WIDTH)
    at = tl.arange(0, ROWS)[:, None] * HEAD + channel[None, :]
    tl.store(y + at, rotated(rows, ROWS, WIDTH, BLOCK, LEVELS), mask=(channel < HEAD)[None, :])


@triton.jit
def copy_signs(y, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, WIDTH), signs(WIDTH, BLOCK))


@pytest.mark.parametrize("head_size", range(32, 513, 8))
def test_every_head_size_is_rotated_within_1e_5_of_fp64(head_size):
    x = torch.randn(4, head_size, generator=torch.Generator().manual_seed(head_size))
    y = torch.full_like(x, float("nan"))
    block = head_size & -head_size

    rotate_rows[(1,)](x, y, 4, head_size, triton.next_power_of_2(head_size), block, block.bit_length() - 1)

    reference = rotate(x.double(), head_size)
    assert ((y - reference).norm(dim=1) / reference.norm(dim=1)).max() < 1e-5


@pytest.mark.parametrize("head_size", range(32, 513, 24))
def test_a_rotation_that_begins_on_matrix_units_is_as_exact(head_size):
    x = torch.randn(8, head_size, generator=torch.Generator().manual_seed(head_size))
    y = torch.full_like(x, float("nan"))
    block = head_size & -head_size

    rotate_rows_on_units[(1,)](x, y, 8, head_size, triton.next_power_of_2(head_size), block, block.bit_length() - 1)

    reference = rotate(x[:-1].double(), head_size)
    assert ((y[:-1] - reference).norm(dim=1) / reference.norm(dim=1)).max() < 1e-5
    assert (y[-1] == 0).all()


def test_the_first_128_signs_are_the_published_ones():
    """Most significant bit first, 1 for minus, as read from vLLM 0.33."""
    found = torch.empty(128)

    copy_signs[(1,)](found, 128, 128)

    bits = "".join("1" if sign < 0 else "0" for sign in found.tolist())
    assert f"{int(bits, 2):032x}" == "4f6531597253fefec943dd9ae3d50129"


def test_every_block_takes_the_same_first_signs():
    found = torch.empty(128)

    copy_signs[(1,)](found, 128, 32)

    assert torch.equal(found.view(4, 32), found[:32].expand(4, 32))
