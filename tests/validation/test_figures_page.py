"""The page of a device's figures says what its traces and raw logs hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml

from kvreg.core.index import Index
from kvreg.validation import figures_page

EVIDENCE = Path(figures_page.__file__).parents[2] / "backends/kvreg_cuda/evidence/h200"


@pytest.mark.long
@pytest.mark.checkout
def test_a_row_has_the_times_of_its_trace_and_the_worst_error_of_its_logs() -> None:
    lines = figures_page.page(Index.open(), "h200").splitlines()
    trace = yaml.safe_load((EVIDENCE / "none/d128-decode-triton-none-decode.yaml").read_text())
    times = [f"{each['us']:.1f}" for each in trace["timings"]]
    worst = max(
        row["e"]
        for log in (EVIDENCE / "none").glob("d128-*.jsonl.gz")
        for line in map(json.loads, gzip.decompress(log.read_bytes()).splitlines())
        if "cell" in line and line["cell"]["kind"] == "decode" and len(line["cell"]["seeds"]) < 200
        for row in line["rows"]
    )

    assert any(line.startswith(f"| 128 | triton-none-decode@1 | {' | '.join(times)} | ") for line in lines)
    assert any(line.startswith(f"| none | 128 | {worst:.2e} | ") for line in lines)
