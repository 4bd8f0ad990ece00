"""What is different on Intel, and why: each as data that the options, the tuner's space and docs/xpu.md are made of.

Sources: triton-xpu 3.3.0b1 (compiler.py of its intel backend), the same backend at 3.8.0 (commit 6c164993, read only),
and what 3.3.0b1 was measured to emit here.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_WORK_ITEMS = 1024
"""Of a work-group on every card that kvreg knows."""
MOST_SUB_GROUPS = 64
SUB_GROUP = 16
"""Lanes of a kernel with DPAS, whatever was asked: the least sub-group of Xe-HPC, Xe2 and Xe3."""
PLAIN_SUB_GROUP = 32
"""Lanes of a kernel without DPAS (write, reduce)."""

DPAS_MOST_ROWS = 8
"""Rows of one DPAS, its repeat count; a dot of M rows becomes ceil(M / 8) of them."""

BLOCK_LOAD_PITCH_BYTES = 16
"""What the pitch of rows must be a multiple of for 2D block loads."""

GRF_WORDS = {"3.3": {128: "small", 256: "large"}, "3.8": {128: "128", 256: "256"}}
"""Triton's release -> registers of a hardware thread -> what `grf_mode` is called there."""
GRF_MOST_WARPS = 32
"""With 256 registers an EU has 4 threads instead of 8, and a work-group at most this many sub-groups."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as on other platforms."""

    subject: str
    rule: str
    why: str


DIFFERENCES = (
    Difference(
        "sub-group size",
        f"{SUB_GROUP} with a matrix product, {PLAIN_SUB_GROUP} without; not searched",
        f"the compiler makes it {SUB_GROUP} wherever it emits DPAS, whatever was asked (measured)",
    ),
    Difference(
        "sub-groups of a work-group",
        f"num_warps x {PLAIN_SUB_GROUP} at most {MOST_WORK_ITEMS}: 32 without DPAS, {MOST_SUB_GROUPS} with it",
        "limits of the card; 3.3 checks neither",
    ),
    Difference(
        "DPAS repeat count",
        f"blocks of 16 rows are two DPAS of {DPAS_MOST_ROWS}; fewer rows save nothing on Triton 3.3",
        "the hardware takes 1 to 8 rows, but 3.3 needs 8 or more of a dot; 3.8 takes 1",
    ),
    Difference(
        "registers",
        "grf_mode small or large on 3.3, 128 or 256 on 3.8; the other's word is refused",
        "3.3 drops a word that it does not know without saying so (measured), 3.8 raises",
    ),
    Difference(
        "large register mode",
        f"at most {GRF_MOST_WARPS} sub-groups",
        "64 KiB of registers an EU: 256 registers of 64 bytes leave it 4 threads instead of 8",
    ),
    Difference(
        "stages",
        "1 unless a card says otherwise: a stage is a distance of prefetches of 2D block loads, and there are none",
        "no shared memory holds a stage, so more of them cost nothing and gain nothing in the SPIR-V",
    ),
    Difference(
        "2D block loads",
        f"none (read from the SPIR-V); they would need a pitch that is a multiple of {BLOCK_LOAD_PITCH_BYTES} bytes",
        "masked loads by pointer become gathers; and a pitch is trusted, not checked: a descriptor with a wrong one"
        " would read wrong rows in silence",
    ),
    Difference(
        "fp8",
        "converted to 16 bits before the product",
        "no matrix unit of Xe-HPC or Xe2 takes fp8 (measured: DPAS of f16 and bf16 operands only)",
    ),
    Difference(
        "Arc A (acm-g10)",
        "no DPAS, which the attention kernels declare",
        "triton-xpu 3.3.0b1 emits none for an execution size of 8 (measured with another kernel)",
    ),
)


def grf_mode(registers: int, triton: str) -> str:
    """Return the `grf_mode` of a register count under a release of Triton; raises KeyError for one that has none."""
    release = "3.3" if triton.startswith("3.3") else "3.8"
    return GRF_WORDS[release][registers]


def takes_block_loads(pitch_bytes: int) -> bool:
    """Return whether rows of this pitch could be read by 2D block loads: int4 rows of head size 80 (40 bytes) not."""
    return pitch_bytes % BLOCK_LOAD_PITCH_BYTES == 0
