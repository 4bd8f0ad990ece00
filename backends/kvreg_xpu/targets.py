"""What triton-xpu is told of a device, in place of what it would ask a driver. Torch-free and Triton-free.

A target carries what changes code and nothing else, so that the cards of one arch share their compilations: counts of
Xe-cores and memory sizes are read by triton-xpu 3.3.0b1 and used by no pass.
"""

from __future__ import annotations

from typing import Any

from kvreg.core.devices import Device
from kvreg.core.errors import Refused, wrong

LANES = 32
"""Sub-group size of a kernel without a matrix product; with one, the compiler takes the least that the arch has."""

DPAS_COLUMNS = 16
"""Execution size of DPAS from Xe-HPC on. Arc A has 8, for which triton-xpu 3.3.0b1 emits no DPAS at all (measured)."""


def target_of(device: Device) -> tuple[str, dict[str, Any], int]:
    """Return the target that triton-xpu compiles for; raises Refused where a fact that it needs is not known."""
    facts, sizes = device.facts, list(device.warp_sizes)
    if not sizes or facts.get("dpas_exec_size") is None:
        raise Refused(
            wrong(
                f"compile for {device.key}",
                required="sub-group sizes and the execution size of DPAS",
                found="unknown",
                remedy="add warp_sizes and dpas_exec_size to its entry in backends/kvreg_xpu/devices.yaml",
            )
        )
    dpas = facts["dpas_exec_size"] == DPAS_COLUMNS
    properties = {
        "sub_group_sizes": sizes,
        "max_work_group_size": facts.get("max_threads_per_block"),
        "max_num_sub_groups": facts.get("max_num_sub_groups"),
        "has_subgroup_matrix_multiply_accumulate": dpas,
        # Every arch with DPAS of 16 columns has them, and no other.
        "has_subgroup_2d_block_io": facts.get("block_io_2d", dpas),
        "has_bfloat16_conversions": device.bf16_native is not False,
    }
    return "xpu", properties, LANES
