"""What rows come to beside bf16: whose time counts, and when a ratio is to be taken with care."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvreg.bench.results import Compared, Results, row_of
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Subject

SHAPE = Shape("x", "decode", (8192,) * 32, 32, 8, 128)
BANDWIDTH = 4e12


def row(maker: str, mode: str, us: float, *, share: float = 0.5, e: float = 1e-3, **changes: Any):
    found = {"status": "ok", "us": us, "bytes": int(share * BANDWIDTH * us * 1e-6), "e": e, "method": "graph"}
    return row_of(SHAPE, Subject(maker, mode, f"{maker} {mode}"), {**found, **changes})


def compared(*rows: Any) -> Compared:
    return Compared(SHAPE, rows, BANDWIDTH)


def test_a_ratio_is_to_the_fastest_bf16_whoever_made_it() -> None:
    int4 = row("kvreg", "int4_per_token_head", 100.0)
    found = compared(row("kvreg", "none", 400.0), row("vllm", "none", 300.0), row("sdpa", "none", 500.0), int4)

    assert found.best.maker == "vllm"
    assert found.ratio(int4) == pytest.approx(3.0)
    assert found.share(int4) == pytest.approx(0.5, rel=1e-3)


def test_a_fast_kernel_that_computes_something_else_is_no_bf16_to_beat() -> None:
    wrong = row("sdpa", "none", 1.0, e=0.9)
    found = compared(wrong, row("kvreg", "none", 400.0))

    assert (wrong.status, found.best.maker) == ("wrong", "kvreg")
    assert "required e at most 0.01, found 0.9" in wrong.detail
    assert found.ratio(wrong) is None


def test_a_result_that_is_no_number_is_wrong() -> None:
    assert row("kvreg", "int4_per_token_head", 1.0, e=1e9).status == "wrong"
    assert row("kvreg", "int4_per_token_head", 1.0, e=float("nan")).status == "wrong"


def test_a_peer_s_quantized_kernel_is_shown_and_not_judged() -> None:
    assert row("vllm", "int4_per_token_head", 1000.0, e=0.02).status == "ok"


def test_ratios_are_marked_without_flashinfer_unless_kvreg_s_bf16_is_near_the_card_s_limit() -> None:
    assert compared(row("kvreg", "none", 400.0, share=0.84)).is_marked
    assert not compared(row("kvreg", "none", 400.0, share=0.86)).is_marked
    assert not compared(row("kvreg", "none", 400.0, share=0.5), row("flashinfer", "none", 300.0)).is_marked
    crashed = row("flashinfer", "none", 300.0, status="crash", detail="killed by SIGSEGV")
    assert compared(row("kvreg", "none", 400.0, share=0.5), crashed).is_marked


def test_without_any_bf16_there_is_no_ratio() -> None:
    int4 = row("kvreg", "int4_per_token_head", 100.0)

    assert compared(int4).ratio(int4) is None
    document = Results(None, [compared(int4)]).to_json()
    assert json.loads(json.dumps(document, allow_nan=False))["shapes"][0]["best_bf16"] is None
