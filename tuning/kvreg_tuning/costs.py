"""What a config should cost on a card that is not here: a model of its compiled kernel, and never a measurement.

    time = launches + tail * max(memory, issue, matrix)

    memory  bytes / (bandwidth * min(1, bytes in flight / (bandwidth * LATENCY_S)))
            in flight: of every resident program the tiles that its pipeline loads ahead, one tile at least
    issue   instructions of all waves / (units at work * SLOTS * clock * min(1, waves on a unit / (SLOTS * HIDING)))
            of one tile: code bytes / INSTRUCTION_BYTES / LOOPS, for every wave; decode on NVIDIA: kvreg_tuning.warps
    matrix  operations of the padded blocks / the card's dense rate, by the share of units at work
    tail    rounds of resident programs, the last one as long as a full one, over the rounds' worth of work
    resident programs on a unit: what registers, shared memory and threads allow, the least of them

Constants and where they come from stand beside them, and in docs/tuning.md. They are the same for every config of a
card, so that most errors cancel in a ranking, which is all that the model is for. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.errors import Refused, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg_tuning import warps
from kvreg_tuning.subjects import Config, Subject, moved_bytes

LAUNCH_S = 3e-6
"""One kernel in a captured graph, and as much again for the reduction of a split context: the writes of one decode
step take 3 to 4 us on an H200 whatever they move."""

AT_ONCE = 16
"""Splits that a reduction loads side by side (kvreg_triton.merging): the next ones wait for two of its loads."""

NEAR_S = 0.15e-6
"""A load of what was just written, from the L2. An assumption: an H100's are published as 200 to 270 clocks."""

LATENCY_S = 0.8e-6
"""From a load's issue to its data under load. An assumption: idle latencies of HBM2e to HBM3e cards are published
between 0.5 and 0.8 us; cards with GDDR have less."""

CLOCK_HZ = {
    "gfx90a": 1.7e9,
    "gfx942": 2.1e9,
    "gfx950": 2.4e9,
    "gfx1100": 2.5e9,
    "gfx1201": 2.97e9,
}
"""Peak engine clocks of AMD's product pages (MI210, MI300X, MI355X, RX 7900 XTX, RX 9070 XT), recalled. Nominal, for a
clock that was read would flip choices under throttling."""
OTHER_CLOCK_HZ = 2.0e9
"""Of an arch that is not listed: an assumption."""

SLOTS = {64: 1.0, 32: 2.0}
"""Lanes of a wave -> vector instructions of whole waves that a CU begins in a clock: four SIMDs of 16 lanes take four
clocks for a wave of 64 (CDNA); two SIMDs of 32 lanes take one for a wave of 32 (RDNA)."""

HIDING = 2.0
"""Waves that a slot needs before it has something to issue in most clocks: a wave alone issues in every second one.
An assumption."""

INSTRUCTION_BYTES = {"rocm": 6.0}
"""4 or 8 bytes each, about half and half in these kernels. Intel's SPIR-V is no machine code, so that nothing is known
of its length there."""

LOOPS = {Op.DECODE: 3.0, Op.PREFILL: 3.0, Op.WRITE: 1.0}
"""The attention kernels hold three loops over tiles (edge, whole, tail) that are nearly the same code."""

SIMDS = {"rocm": 4}
"""SIMDs of a CU, for which the compiler gives the waves that registers allow."""

MOST_BLOCKS = 32
"""Blocks on a unit, whatever they take."""

LEAST_GAIN = 0.10
"""The default is given up only for what the model holds 10 % faster: it is no closer than that."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimate of one config in one bucket."""

    us: float
    memory_us: float
    issue_us: float | None
    """None where the compiler does not tell the length of the code."""
    matrix_us: float
    resident: int
    """Programs on a unit at a time."""
    tail: float
    splits: int

    @property
    def bound(self) -> str:
        """What takes longest: memory, issue or matrix."""
        parts = {"memory": self.memory_us, "issue": self.issue_us or 0.0, "matrix": self.matrix_us}
        return max(parts, key=lambda name: parts[name])


def require_facts(device: Device) -> None:
    """Raise Refused for a device without the facts that the model needs: an arch has no units and no bandwidth."""
    missing = [name for name in ("compute_units", "memory_bandwidth_gbs") if getattr(device, name) is None]
    if missing:
        raise Refused(
            wrong(
                f"estimate for {device.key}",
                required="a card with known units and bandwidth",
                found=f"no {' and no '.join(missing)}",
                remedy="name a card of that arch (`kvreg devices` lists them)",
            )
        )


def cost(
    subject: Subject, bucket: Bucket, config: Config, splits: int, reading: Mapping[str, Any], device: Device
) -> Cost:
    """Return the estimate of a config whose main kernel was compiled to `reading` (kvreg_triton.cross.readings)."""
    assert device.compute_units is not None  # require_facts has seen to it
    assert device.memory_bandwidth_gbs is not None
    op, units, bandwidth = Op(subject.op), device.compute_units, device.memory_bandwidth_gbs * 1e9
    work = _work(subject, bucket, config, splits)
    threads = int(reading.get("threads") or config["num_warps"] * max(device.warp_sizes, default=32))
    lanes = max(device.warp_sizes, default=32)
    waves = max(1, threads // lanes)
    resident = _resident(reading, device, threads, waves)
    at_work = min(units, work.programs)
    on_unit = min(resident, math.ceil(work.programs / units))
    rounds = work.programs / (units * resident)
    tail = math.ceil(rounds) / rounds if rounds > 1 else 1.0

    in_flight = at_work * on_unit * work.ahead_bytes
    memory = work.bytes / (bandwidth * min(1.0, in_flight / (bandwidth * LATENCY_S)))
    memory += work.workspace_bytes / bandwidth
    if device.platform == "cuda":
        programs = warps.Programs(work.programs, work.tiles, waves, at_work, on_unit, config.get("num_stages", 1))
        issue = _issue_of_warps(reading, device, op, programs)
    else:
        issue = _issue(reading, device, lanes, work, op, at_work, on_unit * waves)
    rate = _matrix_rate(subject, device)
    matrix = work.operations / rate * units / at_work if rate else 0.0
    launches = LAUNCH_S + (LAUNCH_S + 2 * NEAR_S * math.ceil(splits / AT_ONCE) if splits > 1 else 0.0)
    seconds = launches + tail * max(memory, issue or 0.0, matrix)
    return Cost(
        us=seconds * 1e6,
        memory_us=memory * 1e6,
        issue_us=None if issue is None else issue * 1e6,
        matrix_us=matrix * 1e6,
        resident=resident,
        tail=tail,
        splits=splits,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What all programs of a launch do together."""

    programs: int
    tiles: float
    """Of all programs."""
    bytes: float
    workspace_bytes: float
    ahead_bytes: float
    """Bytes that one program has under way."""
    operations: float
    """Of the matrix unit, padding included."""


def _work(subject: Subject, bucket: Bucket, config: Config, splits: int) -> _Work:
    op, mode, head = Op(subject.op), Mode(subject.mode), subject.head_size
    moved = moved_bytes(op, mode, head, subject.kv_heads, bucket)
    row_bytes = mode.bytes_per_token_head(head)
    if op is Op.WRITE:
        programs = math.ceil(bucket.batch / config["rows"]) * subject.kv_heads * 2
        given = config["rows"] * head * 2  # bf16 rows that a program loads at once
        return _Work(programs, float(programs), float(moved or 0), 0.0, float(given), 0.0)
    tile, width = config["tile"], 1 << (head - 1).bit_length()
    if op is Op.DECODE:
        programs = bucket.batch * subject.kv_heads * splits
        tiles = bucket.batch * subject.kv_heads * splits * math.ceil(bucket.context / splits / tile)
        heads = subject.group * subject.kv_heads
        workspace = 2.0 * 4 * bucket.batch * heads * splits * (head + 2) if splits > 1 else 0.0
        loaded = float(moved or 0)
    else:
        tokens = max(1, config["rows"] // subject.group)
        blocks = math.ceil(bucket.context / tokens)
        programs = bucket.batch * subject.kv_heads * blocks
        # A causal block reads what lies before it: half of the context on average.
        tiles = bucket.batch * subject.kv_heads * blocks * math.ceil((bucket.context + tokens) / 2 / tile)
        workspace = 0.0
        loaded = float(tiles * tile * row_bytes)
    ahead = max(1, config["num_stages"] - 1) * tile * row_bytes
    operations = 2.0 * 2 * tiles * tile * config["rows"] * width
    return _Work(programs, float(tiles), loaded, workspace, float(ahead), operations)


def _resident(reading: Mapping[str, Any], device: Device, threads: int, waves: int) -> int:
    limits = [MOST_BLOCKS]
    facts = device.facts
    shared, per_unit = reading.get("shared_bytes"), facts.get("shared_per_cu_bytes")
    if shared and per_unit:
        limits.append(per_unit // shared)
    if reading.get("waves_per_simd"):
        limits.append(reading["waves_per_simd"] * SIMDS.get(device.platform, 4) // waves)
    elif reading.get("registers") and facts.get("registers_per_cu"):
        limits.append(facts["registers_per_cu"] // (reading["registers"] * threads))
    if facts.get("max_threads_per_cu"):
        limits.append(facts["max_threads_per_cu"] // threads)
    return max(1, min(limits))


def _issue(
    reading: Mapping[str, Any], device: Device, lanes: int, work: _Work, op: Op, at_work: int, waves_on_unit: int
) -> float | None:
    code = reading.get("code_bytes")
    if not code or device.platform not in INSTRUCTION_BYTES:
        return None
    slots = SLOTS[lanes]
    threads = reading.get("threads") or lanes
    instructions = work.tiles * code / INSTRUCTION_BYTES[device.platform] / LOOPS[op] * max(1, threads // lanes)
    clock = CLOCK_HZ.get(device.arch, OTHER_CLOCK_HZ)
    return instructions / (at_work * slots * clock * min(1.0, waves_on_unit / (slots * HIDING)))


def _issue_of_warps(reading: Mapping[str, Any], device: Device, op: Op, programs: warps.Programs) -> float | None:
    """Only a decode was ever held against a card: of other kernels nothing is said."""
    if op is not Op.DECODE:
        return None
    clock = CLOCK_HZ.get(device.arch, OTHER_CLOCK_HZ)
    return warps.issue_s(reading, programs, clock_hz=clock, latency_s=LATENCY_S, hiding=HIDING)


def _matrix_rate(subject: Subject, device: Device) -> float | None:
    """Operations a second of the matrix unit in 16-bit floats, which every kernel of today multiplies in."""
    rate = (device.facts.get("dense_tflops") or {}).get("fp16")
    return rate * 1e12 if rate and subject.op != Op.WRITE else None
