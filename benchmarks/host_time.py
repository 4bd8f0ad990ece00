"""CPU time of one eager attend and write of an H200's kernels, on any machine: the launch itself is left out.

    TRITON_INTERPRET=0 python benchmarks/host_time.py

Triton's driver and compiler are stood in for (tests/launched/stand_in.py), so that everything down to the call of a
compiled kernel's launcher is the real code. Tensors lie in the host's memory; their values, which only the cpu device
looks at, are not checked in the calls that are measured "anew". Prints us of the thread's CPU time, the least of
15 rounds of 200 calls: of known calls, of calls of facts that no cache knows but whose kernels are, and of calls that
Triton is asked about.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "launched"))

import caches
import stand_in
import triton

import kvreg
from kvreg.runtime import values
from kvreg.runtime.replay import Known, paused

SHAPES = (("32 x 8192, 32/8 x 128", 32, 8, 128, 8192), ("32 x 1088, 32/32 x 96", 32, 32, 96, 1088))
N = 32


def least(call: Callable[[], Any]) -> float:
    """Return us of CPU time of one call."""
    for _ in range(50):
        call()
    rounds = []
    for _ in range(15):
        begin = time.thread_time_ns()
        for _ in range(200):
            call()
        rounds.append((time.thread_time_ns() - begin) / 200e3)
    return min(rounds)


def measured(call: Callable[[], Any]) -> str:
    """Return the three times of a call as text."""
    known = least(call)
    with paused():
        anew = least(call)
        triton.knobs.runtime.launch_enter_hook.add(ignored)
        asked = least(call)
        triton.knobs.runtime.launch_enter_hook.remove(ignored)
    return f"{known:6.1f} {anew:6.1f} {asked:6.1f}"


def ignored(told: Any) -> None:
    """Listen to launches, so that Triton makes them."""


def main() -> None:
    """Measure int4 of both shapes."""
    driver = stand_in.install(Path(tempfile.mkdtemp()))
    driver.launcher_cls = lambda source, metadata: lambda *args: None
    for name in ("check_slots", "check_batch", "check_features"):
        setattr(values, name, lambda *args, **keywords: None)
    print(f"Triton {triton.__version__}, torch {torch.__version__}; us: known call, known kernels, Triton's own way")
    for name, q_heads, kv_heads, head_size, context in SHAPES:
        selection = caches.select("int4_per_token_head", head_size, q_heads, kv_heads)
        cache = caches.cache(selection, context // 16)
        cache.known = Known()
        lens = torch.full((N,), context, dtype=torch.int32)
        cuts, table = torch.arange(N + 1, dtype=torch.int32), torch.zeros(N, context // 16, dtype=torch.int32)
        plan = kvreg.plan(cache, cuts, lens, max_context=context)
        q = torch.zeros(N, q_heads, head_size, dtype=torch.bfloat16)
        k, v = (torch.zeros(N, kv_heads, head_size, dtype=torch.bfloat16) for _ in range(2))
        slots = torch.arange(N)
        launches = 1 + (plan.split.splits > 1)
        print(f"{name}: attend in {launches}", measured(lambda: kvreg.attend(q, cache, table, lens, cuts, plan)))  # noqa: B023
        print(f"{name}: write      ", measured(lambda: kvreg.write(cache, k, v, slots)))  # noqa: B023


if __name__ == "__main__":
    main()
