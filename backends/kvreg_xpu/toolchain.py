"""What the environment of Intel's Triton is made of. Torch-free."""

from __future__ import annotations

from kvreg.core.environments import Recipe

CHILD = "kvreg_xpu.child"
"""The program that compiles there; see kvreg_triton.cross.compilations."""

OCLOC_VARIABLE = "XPU_OCLOC"
"""Names the ocloc that the child asks for the machine code of Xe-HPC, minutes a kernel; not asked without it."""

RECIPE = Recipe(
    name="xpu",
    # The newest on the public index. It is a package `triton` of its own, so it can lie beside no other.
    distribution="triton-xpu",
    version="3.3.0b1",
    pythons=((3, 11), (3, 12)),
    system="Linux",
    machine="x86_64",
    size_mb=182,
    probe="from triton.backends import backends; backends['intel']; import triton; print(triton.__version__)",
)
