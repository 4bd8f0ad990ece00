"""A launch that Triton has seen goes to its compiled kernel directly, and is the launch that Triton would make."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from kvreg.runtime.direct import Direct
from kvreg_cuda.launching import Programs
from kvreg_triton.launch import compile_only, submit

THROUGH_TRITON = "jit.py:run"
META = {"BLOCK": 16, "FLAG": True, "num_warps": 1}


@triton.jit
def kernel(x, y, n, m, f, BLOCK: tl.constexpr, FLAG: tl.constexpr):
    tl.store(x, tl.load(y) * n + m + f)


@triton.jit(do_not_specialize=["n"])
def unspecialized(x, y, n, m, f, BLOCK: tl.constexpr, FLAG: tl.constexpr):
    tl.store(x, tl.load(y) * n + m + f)


def memory(bytes_off: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(256, dtype=torch.uint8)[bytes_off : bytes_off + 64].view(dtype)


KEPT = [memory(), memory(), memory(4), memory(8), memory(dtype=torch.float16), memory(dtype=torch.int64)]
"""Tensors that live as long as addresses are compared."""
X, Y, OFF_4, OFF_8, HALF, WIDE = KEPT

CASES = {
    "plain": ((X, Y, 5, 7, 1.5), {}),
    "other values of the same kind": ((Y, X, 7, 9, 2.5), {}),
    "an integer of one": ((X, Y, 1, 7, 1.5), {}),
    "a multiple of 16": ((X, Y, 32, 7, 1.5), {}),
    "zero": ((X, Y, 0, 7, 1.5), {}),
    "a negative integer": ((X, Y, -3, 7, 1.5), {}),
    "64 bits": ((X, Y, 5, (1 << 31) + 1, 1.5), {}),
    "64 bits, multiple of 16": ((X, Y, 5, 1 << 40, 1.5), {}),
    "the largest of 32 bits": ((X, Y, 5, (1 << 31) - 1, 1.5), {}),
    "the least of 32 bits": ((X, Y, 5, -(1 << 31), 1.5), {}),
    "unsigned 64 bits": ((X, Y, 5, 1 << 63, 1.5), {}),
    "a bool": ((X, Y, True, 7, 1.5), {}),
    "an integer in the place of a float": ((X, Y, 5, 7, 1), {}),
    "unaligned first": ((OFF_4, Y, 5, 7, 1.5), {}),
    "unaligned second": ((X, OFF_8, 5, 7, 1.5), {}),
    "fp16": ((HALF, Y, 5, 7, 1.5), {}),
    "int64": ((X, WIDE, 5, 7, 1.5), {}),
    "a parameter": ((torch.nn.Parameter(X), Y, 5, 7, 1.5), {}),
    "another constant": ((X, Y, 5, 7, 1.5), {"BLOCK": 32}),
    "a constant of another type": ((X, Y, 5, 7, 1.5), {"FLAG": 1}),
    "another option": ((X, Y, 5, 7, 1.5), {"num_warps": 2}),
    "a dependent launch": ((X, Y, 5, 7, 1.5), {"launch_pdl": True}),
}


@pytest.mark.parametrize("jitted", [kernel, unspecialized], ids=["specialized", "unspecialized"])
@pytest.mark.parametrize("case", CASES)
def test_a_direct_launch_is_the_one_that_triton_makes(case, jitted, driver, called, listening):
    """Whatever was launched before: all cases meet the same kernel in one process."""
    args, changed = CASES[case]

    def launch():
        submit(Direct(jitted), (3, 2), args, {**META, **changed})

    with listening() as told:
        launch()
    launch()
    seen = called(launch)

    assert len(told) == 1
    assert THROUGH_TRITON not in seen
    first, second, third = driver.launches
    assert first == second == third
    assert first[2] == (3, 2, 1)


def test_triton_is_asked_while_somebody_listens(driver, called, listening):
    """Profilers hook launches; a launch past Triton would be missing from what they show."""
    launch = lambda: submit(Direct(kernel), (1,), (X, Y, 3, 7, 1.5), dict(META))  # noqa: E731
    launch()
    launch()

    with listening() as told:
        assert THROUGH_TRITON in called(launch)
    assert len(told) == 1
    assert THROUGH_TRITON not in called(launch)


def test_triton_is_asked_for_a_kernel_with_assertions(driver, called, monkeypatch):
    launch = lambda: submit(Direct(kernel), (1,), (X, Y, 3, 7, 1.5), dict(META))  # noqa: E731
    launch()
    plain = driver.launches[-1][1]
    monkeypatch.setattr(knobs.runtime, "debug", True)

    assert THROUGH_TRITON in called(launch)
    assert driver.launches[-1][1] != plain


def test_an_argument_of_an_unknown_type_goes_to_triton(driver, called):
    launch = lambda: submit(Direct(kernel), (1,), (X, Y, 3, 7, None), dict(META))  # noqa: E731
    launch()

    assert THROUGH_TRITON in called(launch)
    assert driver.launches[0] == driver.launches[1]


def test_stream_and_device_are_those_of_the_launch(driver):
    def launch():
        submit(Direct(kernel), (1,), (X, Y, 3, 7, 1.5), dict(META))
        return driver.launches[-1]

    launch()
    driver.stream = 11
    try:
        assert launch()[3] == 11
        driver.device = 1
        assert launch()[0] == launch()[0] == 1
        driver.device = 0
        assert launch()[0] == 0
    finally:
        driver.stream, driver.device = 7, 0


def test_so_many_programs_and_the_heads_make_the_grid(driver):
    for _ in range(2):
        submit(Programs(Direct(kernel), 12), (5, 3, 4), (X, Y, 3, 7, 1.5), dict(META))

    assert [launch[2] for launch in driver.launches] == [(12, 3, 1)] * 2


def test_an_empty_grid_is_no_launch(driver):
    submit(Direct(kernel), (0, 3), (X, Y, 3, 7, 1.5), dict(META))

    assert not driver.launches


def test_compile_only_compiles_known_kernels_too_and_launches_none(driver):
    submit(Direct(kernel), (1,), (X, Y, 3, 7, 1.5), dict(META))
    driver.launches.clear()

    with compile_only() as compiled:
        submit(Direct(kernel), (1,), (X, Y, 3, 7, 1.5), dict(META))

    assert len(compiled) == 1
    assert not driver.launches
