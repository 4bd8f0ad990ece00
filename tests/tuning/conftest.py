"""Entries of a tuned file, recorded spaces that are made up, and `kvreg tune` as a process."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PLAIN = {
    "variant": "toy-int4-decode@1",
    "op": "decode",
    "mode": "int4_per_token_head",
    "head_size": 96,
    "group": 4,
    "page": 16,
    "dtype": "bf16",
    "layout": "planar.1",
    "features": ["causal"],
    "bucket": "b32-c8192",
    "config": {"tile": 64, "num_warps": 2},
    "latency_us": 80.0,
    "default_latency_us": 100.0,
    "improvement": 0.2,
    "kernel_hash": "a" * 64,
    "source": "measured",
    "date": "2026-11-30T10:00:00Z",
}
"""An entry; a test states what differs."""

SUBJECT = {
    "device": "h200",
    "variant": "triton-int4-decode@1",
    "op": "decode",
    "mode": "int4_per_token_head",
    "head_size": 128,
    "group": 4,
    "kv_heads": 8,
    "page": 16,
    "dtype": "bf16",
    "layout": "planar.1",
    "features": ["causal"],
}
KNOBS = {
    "tile": (16, 32, 64, 128),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4),
    "programs_per_unit": (1, 2, 4, 8, 16),
}
DEFAULT = {"tile": 32, "num_warps": 1, "num_stages": 3, "programs_per_unit": 8}

Trials = Mapping[str, Any]


def made_up(
    path: Path,
    trial: Callable[[dict[str, int], str], Trials],
    *,
    knobs: Mapping[str, tuple[int, ...]] = KNOBS,
    default: Mapping[str, int] = DEFAULT,
    buckets: tuple[str, ...] = ("b32-c8192",),
) -> Path:
    """Write a recording of every combination; `trial` gives the fields of one config in one bucket."""
    combined = [dict(zip(knobs, values, strict=True)) for values in itertools.product(*knobs.values())]
    configs = [dict(default), *(config for config in combined if config != default)]
    head = {
        "schema": 1,
        "device": "h200",
        "versions": {"triton": "3.6.0", "torch": "2.11.0"},
        "spaces": [
            {
                "subject": SUBJECT,
                "buckets": list(buckets),
                "knobs": knobs,
                "configs": configs,
                "kernel_hash": "ab" * 32,
            }
        ],
    }
    plain = {"result": "ok", "samples": 20, "compile_s": 2.0, "gate_s": 0.2, "bench_s": 0.3}
    gate = {"e": 0.002, "cosine": 0.99999, "seeds": 2, "bits": "same"}
    rows = [
        {"space": 0, "bucket": bucket, "config": config, **plain, "gate": gate, **trial(config, bucket)}
        for config in configs
        for bucket in buckets
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in (head, *rows)).encode()))
    return path


class Command:
    """Runs `kvreg` in processes of their own."""

    ARGUMENTS = (sys.executable, "-c", "from kvreg.cli.main import run; run()")

    def run(self, *arguments: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [*self.ARGUMENTS, *arguments],
            capture_output=True,
            text=True,
            env=surroundings(home, **variables),
            timeout=240,
        )

    def start(self, *arguments: str, home: Path, **variables: str) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            [*self.ARGUMENTS, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings(home, **variables),
            # A suite that runs in the background of a shell hands down an ignored Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )


def surroundings(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a command with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
    path = os.pathsep.join(filter(None, [variables.pop("before", ""), kept.get("PYTHONPATH", "")]))
    return {**kept, "KVREG_HOME": str(home), "PYTHONPATH": path, **variables}


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a made-up recording and returns its file."""
    return lambda trial, **asked: made_up(tmp_path / "space.jsonl.gz", trial, **asked)


@pytest.fixture
def command() -> Command:
    """Return what runs the command line."""
    return Command()


@pytest.fixture(scope="session")
def planted() -> ModuleType:
    """Return the module planted.py beside this file."""
    spec = importlib.util.spec_from_file_location("planted_source", Path(__file__).with_name("planted.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def entry() -> Callable[..., Any]:
    """Make an entry record."""
    from kvreg.core.tuned_files import EntryRecord

    def make(**changed: Any) -> EntryRecord:
        return EntryRecord.model_validate({**PLAIN, **changed})

    return make
