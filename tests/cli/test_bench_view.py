"""How a bench is shown."""

from __future__ import annotations

import pytest

from kvreg.bench.results import Compared, Results, refused, row_of
from kvreg.bench.shapes import Shape
from kvreg.bench.subjects import Refusal, Subject
from kvreg.cli import bench_view
from kvreg.core import resolve
from kvreg.validation.machine import Machine

SHAPE = Shape("x", "decode", (8192,) * 32, 32, 8, 128)
MACHINE = Machine(resolve.resolve("h200").device, (), "device", "cuda:0")
VALUES = {"status": "ok", "samples": 15, "method": "graph", "spread": 0.012, "e": 1.5e-3, "host_us": 37.4}
SHOWN = """\
h200: torch 2.11; read bandwidth in this run 4.000 TB/s

x: decode 32 x 8192, 32/8 heads of 128; fastest bf16 300.0 us*
kernel            us     spread  TB/s         of bf16  host us  e
SDPA bf16, dense  300.0  1.2 %   2 (50 %)     1.00x*   37       1.5e-03
a-decode@1        100.0  1.2 %   1.44 (36 %)  3.00x*   37       1.5e-03
vLLM int8: crash: killed by SIGSEGV

not measured at x: for want of evidence
--all-variants measures what select refuses for want of evidence
us: median of one call by graph replay, buffers rotated over more than three times the L2; spread: of the middle half\
 of the samples
TB/s: bytes that the call must move; in brackets the share of the read bandwidth
of bf16: how many times faster than the fastest bf16 of this run; host us: the eager Python call alone
e: worst judged row against fp64 attention over the cache that the kernel read
* no FlashInfer in this run, and kvreg's own bf16 reaches less than 85 % of the card: the best bf16 there is may be\
 faster
"""


def test_a_shape_is_a_table_with_what_failed_below_it_and_footnotes_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        row_of(SHAPE, Subject("sdpa", "none", "SDPA bf16, dense"), {**VALUES, "us": 300.0, "bytes": 600_000_000}),
        row_of(SHAPE, Subject("kvreg", "int4", "a-decode@1"), {**VALUES, "us": 100.0, "bytes": 144_000_000}),
        row_of(SHAPE, Subject("vllm", "int8", "vLLM int8"), {"status": "crash", "detail": "killed by SIGSEGV"}),
        refused(SHAPE, Refusal("fp8", "for want of evidence")),
    )

    bench_view.show(Results(4e12, [Compared(SHAPE, rows, 4e12)]), MACHINE, {"torch": "2.11", "triton": None}, False)

    assert capsys.readouterr().out == SHOWN
