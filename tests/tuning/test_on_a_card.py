"""Kernels that read out of bounds or never end, on a card: the trial is lost, and the card serves the next one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvreg_tuning.worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")]

KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def read(x, y, far):
    tl.store(y, tl.load(x + far))

@triton.jit
def wait(x):
    while tl.load(x, volatile=True) == 0.0:
        pass

def out_of_bounds():
    x = torch.zeros(1, device="cuda")
    read[(1,)](x, x, 1 << 42)
    torch.cuda.synchronize()

def for_ever():
    wait[(1,)](torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()

def usable():
    return float(torch.ones(1 << 20, device="cuda").sum())
"""


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    (tmp_path / "bad_kernels.py").write_text(KERNELS)
    return Worker(search_path=(str(tmp_path),), environment={"TRITON_INTERPRET": "0"})


def test_a_kernel_that_reads_out_of_bounds_poisons_its_own_process_only(worker: Worker) -> None:
    with worker:
        lost = worker.run("bad_kernels:out_of_bounds", timeout_s=60)
        after = worker.run("bad_kernels:usable", timeout_s=60)

    assert lost.status == "error"
    assert "illegal memory access" in lost.error
    assert not lost.device_lost
    assert after.value == float(1 << 20)


def test_a_kernel_that_never_ends_is_killed_and_the_card_serves_on(worker: Worker) -> None:
    with worker:
        hung = worker.run("bad_kernels:for_ever", timeout_s=20)
        after = worker.run("bad_kernels:usable", timeout_s=60)

    assert hung.status == "timeout"
    assert after.value == float(1 << 20)
