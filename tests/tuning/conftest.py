"""Entries of a tuned file, each stating what differs from a plain decode."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.fixture
def entry() -> Callable[..., Any]:
    """Make an entry record."""
    from kvreg.core.tuned_files import EntryRecord

    def make(**changed: Any) -> EntryRecord:
        return EntryRecord.model_validate({**PLAIN, **changed})

    return make
