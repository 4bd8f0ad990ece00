"""How long `kvreg deselections check` takes for a long list: 5 000 entries against 50 000 collected ids.

python benchmarks/check_time.py [--entries 5000] [--ids 50000] [--runs 5]

The ids are parameter cases of 400 tests, one of which has a tenth of all (as vLLM's unified-attention test has). Of
the entries nine tenths are exact ids and one tenth globs; one in ten is dead since its test has gained a parameter,
one in a hundred is doubled. Each run is a process of its own, so imports and the read of both files are in it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = "from kvreg.cli.main import run; run()"
TESTS = 400


def collected(count: int) -> list[str]:
    """Return ids of `TESTS` tests, a tenth of them of one test."""
    dtypes, platforms = ("bf16", "fp16", "fp8", "int8", "int4"), ("xpu:0", "xpu:1")
    found: list[str] = []
    for number in range(count):
        test = 0 if number % 10 == 0 else 1 + number % (TESTS - 1)
        words = (dtypes[number % 5], platforms[number % 2], f"num_heads{number % 7}", f"seq_lens{number}")
        found.append(f"tests/kernels/test_{test % 40}.py::test_attend_{test}[{'-'.join(words)}]")
    return found


def listed(ids: list[str], count: int, seed: int = 0) -> str:
    """Return the text of a list that speaks of some of these ids."""
    chance = random.Random(seed)
    lines = ["schema: 1", "expectations:"]
    for number, node_id in enumerate(chance.sample(ids, count)):
        base, _, tail = node_id.partition("[")
        text = node_id
        if number % 10 == 1:
            text = f"{base}[{tail.rpartition('-')[0]}-*]"
        elif number % 10 == 2:
            text = f"{base}[{tail.partition('-')[2]}"
        entry = [
            f"- test: {text}",
            "  when: {platform: xpu, device: [b580, b60], memory_gib: '< 24'}",
            "  expect: xfail",
            f"  reason: wrong result of case {number}",
            f"  issue: https://example.org/issues/{number % 73}",
            "  owner: kernels",
            "  added: 2026-11-01",
            "  review_by: 2027-01-01",
        ]
        lines += entry * (2 if number % 100 == 0 else 1)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the median, least and most seconds of a run, and what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--ids", type=int, default=50000)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ids, list_file = Path(folder, "ids.txt"), Path(folder, "list.yaml")
        found = collected(asked.ids)
        ids.write_text("\n".join(found) + "\n")
        list_file.write_text(listed(found, asked.entries))
        command = [sys.executable, "-c", CODE, "deselections", "check", "--as-of", "2026-12-01"]
        command += ["--file", str(list_file), "--ids", str(ids)]
        seconds: list[float] = []
        processor: list[float] = []
        for _ in range(asked.runs + 1):
            began, used = time.perf_counter(), os.times()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds.append(time.perf_counter() - began)
            now = os.times()
            processor.append(now.children_user + now.children_system - used.children_user - used.children_system)
        print(done.stdout.splitlines()[-2].replace(folder, "."))
        for name, figures in (("wall", seconds[1:]), ("processor", processor[1:])):
            middle = statistics.median(figures)
            print(f"{name}: median {middle:.2f} s, least {min(figures):.2f} s, most {max(figures):.2f} s")


if __name__ == "__main__":
    main()
