"""What every test of the tree shares, and a made-up platform whose devices, kernels and records are real files."""

import os

# Triton decides when a kernel is defined whether the interpreter runs it, so this comes before any import of kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

DEVICES = """\
schema: 1
platform: toy
devices:
- key: alpha
  name: Toy Alpha
  platform: toy
  arch: toy_1
  compute_units: 10
  memory_gb: 80
  shared_per_block_max_bytes: 200000
  bf16_native: true
  fp8_triton: [e4m3fn, e5m2]
  variants:
    mini: {name: Toy Alpha Mini, compute_units: 5}
- key: beta
  name: Toy Beta
  platform: toy
  arch: toy_1
  compute_units: 20
  shared_per_block_max_bytes: 200000
  bf16_native: true
  fp8_triton: [e4m3fn, e5m2]
- key: gamma
  name: Toy Gamma
  platform: toy
  arch: toy_2
  compute_units: 10
  shared_per_block_max_bytes: 100000
  bf16_native: false
  fp8_triton: [e5m2]
"""

KERNELS = '''\
"""Kernels of the toy platform; nobody imports them."""

import triton

SCALE = 3


@triton.jit
def helper(x):
    return x * SCALE


@triton.jit
def kernel(x):
    """Docstring."""
    if x:
        x = helper(x)
        x = x + 1
    return x


def launch(x):
    kernel[(1,)](x)
'''

_names = itertools.count()

COLLECTED = pytest.StashKey[list[str]]()
"""Ids of all tests of this run's files, those that -m and -k leave out included."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep the ids: ci/test-ids.txt is compared with them, and collecting anew would take 6 s."""
    config.stash[COLLECTED] = [item.nodeid for item in items]


@pytest.fixture(scope="session")
def collected(pytestconfig):
    """Ids of all tests of this run's files."""
    return pytestconfig.stash[COLLECTED]


class Workshop:
    """A backend of platform `toy` in a folder of its own, with everything that select reads as real files."""

    def __init__(self, folder: Path):
        from kvreg.core.backends import FolderBackend

        self.home = folder / "home"
        self.folder = folder / "toy"
        self.package = f"toykernels{next(_names)}"
        self.source = folder / "src" / self.package / "kernels.py"
        self.source.parent.mkdir(parents=True)
        (self.source.parent / "__init__.py").write_text("")
        self.source.write_text(KERNELS)
        self.folder.mkdir()
        (self.folder / "devices.yaml").write_text(DEVICES)
        self.offered = self.portable()
        self.exceptions = None
        shop = self

        class Toy(FolderBackend):
            name = platform = "toy"

            def variants(self):
                return shop.offered

        self.backend = Toy(self.folder)

    def portable(self):
        """Return write, decode and prefill for none and int4."""
        return tuple(
            self.variant(f"toy-{short}-{op}", op, mode)
            for short, mode in (("none", "none"), ("int4", "int4_per_token_head"))
            for op in ("write", "decode", "prefill")
        )

    def variant(self, name, op, mode, **changed):
        from kvreg.core.formats import default_format
        from kvreg.core.layouts import default
        from kvreg.core.modes import Mode
        from kvreg.core.requests import Op
        from kvreg.core.variants import Variant, VariantId

        mode = Mode(mode)
        plain = Variant(
            id=VariantId(name, 1),
            op=Op(op),
            mode=mode,
            family="toy",
            accuracy="exact",
            launcher=f"{self.package}.kernels:launch",
            kernels=(f"{self.package}.kernels:kernel",),
            format=lambda device, head_size: default_format(mode, device, head_size, default(mode), "bf16"),
            default_config=lambda device, request: {"tile": 32},
        )
        return replace(plain, **changed)

    def kernel_hash(self):
        from kvreg.core.kernelhash import kernel_hash

        return kernel_hash(self.offered[0])

    def index(self):
        from kvreg.core.index import Index

        return Index([self.backend], self.home, shipped=None, exceptions=self.exceptions)

    def resolve(self, text):
        from kvreg.core.resolve import resolve_among

        return resolve_among(text, self.index().devices())

    def ask(self, device, mode, head_size, *, allow=(), backend=None, index=None, **asked):
        """Return the Selection as `kvreg.select` makes it, on this platform alone."""
        from kvreg.core.asking import make_request
        from kvreg.core.environment import Environment
        from kvreg.core.select import select

        found = self.resolve(device)
        request = make_request(found.device.key, mode, head_size, **asked)
        return select(request, found, Environment(self.home, backend=backend), allow, index or self.index())

    def validate(self, device="alpha", head_size=96, *, overlay=False, **changed):
        """Record a trace for every offered variant, as a passed validation would."""
        for variant in self.offered:
            self.trace(variant, device, head_size, overlay=overlay, **changed)

    def trace(self, variant, device="alpha", head_size=96, *, overlay=False, **changed):
        arch = changed.pop("arch", None) or self.resolve(device).device.arch
        folder = self.home / "evidence" if overlay else self.backend.evidence_dir
        kernel_hash = changed.pop("kernel_hash", None) or self.kernel_hash()
        return record_trace(
            folder, variant, "toy", device, arch, head_size=head_size, kernel_hash=kernel_hash, **changed
        )

    def except_test(self, **entry):
        """Record one exception of a test, as kvreg's own list would hold it; it concerns int4 decode everywhere."""
        import yaml

        plain = {
            "test": "tests/kernels/test_attend.py::test_decode[int4-96]",
            "when": "everywhere",
            "expect": "xfail",
            "reason": "wrong result",
            "issue": "https://example.org/issues/7",
            "owner": "kernels",
            "added": "2026-11-01",
            "review_by": "2026-12-01",
        }
        self.exceptions = self.folder / "expectations.yaml"
        self.exceptions.write_text(yaml.safe_dump({"schema": 1, "expectations": [{**plain, **entry}]}))

    def tune(self, device, *entries, overlay=False, environment=()):
        """Write a tuned file of entries; each states what differs from a plain decode entry."""
        import yaml

        folder = self.home / "tuned" if overlay else self.backend.tuned_dir
        folder.mkdir(parents=True, exist_ok=True)
        plain = {
            "variant": "toy-int4-decode@1",
            "op": "decode",
            "mode": "int4_per_token_head",
            "head_size": 96,
            "group": 4,
            "page": 16,
            "dtype": "bf16",
            "layout": "planar.2",
            "features": ["causal"],
            "bucket": "b32-c8192",
            "config": {"tile": 128},
            "latency_us": 10.0,
            "kernel_hash": self.kernel_hash(),
            "source": "measured",
            "date": "2026-11-30",
        }
        document = {"schema": 1, "device": device, "environment": dict(environment)}
        document["entries"] = [{**plain, **entry} for entry in entries]
        path = folder / f"{device.replace('/', '_')}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path


def record_trace(folder, variant, platform, device, arch, *, head_size=96, kernel_hash, **changed):
    """Write trace and log of a passed validation of `variant` below an evidence folder; return the trace's path."""
    from kvreg.core.traces import seal, trace_file, write_log, write_trace

    path = trace_file(Path(folder), device, variant.mode, head_size, variant.op, str(variant.id))
    error = None if variant.op == "write" else changed.pop("max_rel_error", 0.002)
    changed.pop("max_rel_error", None)
    log = write_log([{"cell": 1, "max_rel_error": error}, {"cell": 2, "max_rel_error": error}], path)
    worst = {"group": 4, "kind": "decode", "layout": "planar.1", "input": "normal", "context": 1024, "seed": 2}
    record = {
        "variant": str(variant.id),
        "op": str(variant.op),
        "mode": str(variant.mode),
        "head_size": head_size,
        "platform": platform,
        "device": device,
        "arch": arch,
        "numerics": "device",
        "build": "device",
        "speed": "measured",
        "accuracy": "exact",
        "kernel_hash": kernel_hash,
        "command": f"kvreg validate --device {device} --mode {variant.mode} --head-size {head_size}",
        "started": "2026-11-30T10:00:00Z",
        "ended": "2026-11-30T10:01:00Z",
        "versions": {"kvreg": "0.1.0", "python": "3.12.1", "torch": None, "triton": None, "driver": "1.2"},
        "config": {"tile": 32},
        "layouts": ["planar.1", "planar.2", "inline.1"],
        "gate": {
            "cells": 2,
            "sequences": 8,
            "seeds": 3,
            "max_rel_error": error,
            "min_cosine": None if error is None else 0.99999,
            "max_step_error": 0.51 if error is None else None,
            "worst": worst,
            "limits": {"max_rel_error": 0.005},
        },
        "seeds": [{"seed": seed, "max_rel_error": error} for seed in range(3)],
        "classes": [{"layout": "planar.1", "input": "normal", "context": 1024, "group": 4, "max_rel_error": error}],
        "resources": {"registers": 64, "spill_bytes": 0, "shared_bytes": 1024, "matrix_instruction": None},
        "timings": [{"batch": 32, "context": 8192, "group": 4, "us": 80.5, "bf16_us": 250.0, "bf16_variant": "toy"}],
        "log": log.model_dump(),
    }
    write_trace(seal({**record, **changed}), path)
    return path


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A made-up platform with real files; no evidence and no tuned entry yet."""
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    return Workshop(tmp_path)


@pytest.fixture
def trace_maker():
    """The function that writes a sealed trace with its log, for real variants."""
    return record_trace
