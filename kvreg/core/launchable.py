"""Launch parameters that no launcher can run, whatever the kernel: what an edited tuned file may hold."""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.core.devices import Device

MOST_THREADS = 1024
"""Threads of a block or work-group, on every card that kvreg knows."""

TILES = ("rows", "tile", "num_warps")
"""What Triton takes as powers of two only: extents of a block and warps."""

MOST = {"rows": 1024, "tile": 1024, "num_stages": 16, "programs_per_unit": 1024}
"""Eight times the largest value that any space of a tuner holds, or more; above stands a slip of a hand."""

REGISTERS = (16, 255)
"""The least that ptxas keeps for a thread, and the most that a thread can have."""


def impossible(config: Mapping[str, int], default: Mapping[str, int], device: Device) -> str | None:
    """Return what of `config` cannot be launched and what could be; None where nothing tells.

    `default`: the variant's own launch parameters. Only a launcher of Triton has `num_warps` among them; the plain
    torch one cuts its work at any number of rows.
    """
    for name, value in config.items():
        if value < 1 <= default.get(name, 0):
            return f"{name} {value} instead of at least 1"
    if "num_warps" not in default:
        return None
    for name in TILES:
        if config.get(name, 1) & (config.get(name, 1) - 1):
            return f"{name} {config[name]} instead of a power of two"
    for name, most in MOST.items():
        if config.get(name, 1) > most:
            return f"{name} {config[name]} instead of at most {most}"
    threads = config["num_warps"] * max(device.warp_sizes, default=32)
    if threads > MOST_THREADS:
        return f"num_warps {config['num_warps']} of {threads} threads instead of at most {MOST_THREADS}"
    least, most = REGISTERS
    if not least <= config.get("maxnreg", most) <= most:
        return f"maxnreg {config['maxnreg']} instead of {least} to {most}"
    return None
