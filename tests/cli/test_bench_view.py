"""How a bench is shown."""

from __future__ import annotations

import re

import pytest

from kvreg.bench.host import HostRow
from kvreg.bench.results import Compared, Results, refused, row_of
from kvreg.bench.shapes import Shape
from kvreg.bench.step import results as steps
from kvreg.bench.step.models import BUILT_IN
from kvreg.bench.step.shapes import StepShape
from kvreg.bench.subjects import Refusal, Subject
from kvreg.cli import bench_host, bench_step, bench_view
from kvreg.core import resolve
from kvreg.core.modes import Mode
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


STEP_SHOWN = """\
h200: torch 2.11

phi3-mini step 32 x 1088: 32 layers, hidden 3072, 32/32 heads of 96, MLP 8192, vocabulary 32064; bf16 weights of\
 6.93 GiB
attention of         us              tokens/s  of bf16  attention          cache    e, hidden
SDPA bf16, dense     4000.0 (1.2 %)  8000      1.00x    2500.0 us, 62 %    12.8 GiB  1.5e-03, -
a-decode@1 (alone)   2000.0 (1.2 %)  16000     2.00x    500.0 us, 25 %     3.45 GiB  1.5e-03, 3.0e-02
b-decode@1: wrong: required finite logits and a finite hidden state, found others
not measured: for want of evidence

us: median of a whole step by replay of a CUDA graph that holds a few of them; in brackets the middle half of the\
 samples
"""


def test_a_step_is_a_table_of_whole_steps_with_the_part_of_attention(capsys: pytest.CaptureFixture[str]) -> None:
    shape = StepShape(BUILT_IN["phi3-mini"], 32, 1088)
    found = {**VALUES, "rest_us": 1500.0, "finite": True, "stored": 0.1, "hidden": None}
    del found["host_us"]
    sdpa, int4 = Subject("sdpa", "none", "SDPA bf16, dense"), Subject("kvreg", "int4_per_token_head", "a-decode@1")
    sizes = [shape.cache_bytes(Mode(each.mode)) for each in (sdpa, int4)]
    rows = (
        steps.row_of(sdpa, {**found, "us": 4000.0, "cache_bytes": sizes[0]}),
        steps.row_of(int4, {**found, "us": 2000.0, "cache_bytes": sizes[1], "hidden": 3e-2}, alone=True),
        steps.row_of(Subject("kvreg", "int8_per_token_head", "b-decode@1"), {**found, "us": 1.0, "finite": False}),
        steps.refused(Refusal("fp8_per_tensor", "for want of evidence")),
    )

    bench_step.show(steps.StepResults(shape, rows), MACHINE, {"torch": "2.11"}, False)

    shown = capsys.readouterr().out
    assert squeezed(shown).startswith(squeezed(STEP_SHOWN))
    assert "weights and rows are random, so it rates no model" in shown


HOST_SHOWN = """\
h200: torch 2.11

x
call of     host us  spread  least  running  load
a-decode@1  37.4     8 %     35.0   99 %     1.5 on 16 cores, 2 threads

y
a-write@1  21.0     8 %     35.0   80 %     1.5 on 16 cores
vLLM int8: crash: killed by SIGSEGV
"""


def test_host_times_stand_beside_the_load_and_a_busy_host_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"spread": 0.08, "least": 35.0, "calls": 500, "load": 1.5, "cores": 16}
    rows = [
        HostRow("x", "decode", "kvreg", "none", "a-decode@1", "ok", us=37.4, running=0.99, runnable=2, **values),
        HostRow("y", "write", "kvreg", "none", "a-write@1", "ok", us=21.0, running=0.8, **values),
        HostRow("y", "write", "vllm", "int8_per_token_head", "vLLM int8", "crash", "killed by SIGSEGV"),
    ]

    bench_host.show(rows, MACHINE, {"torch": "2.11"}, False)

    shown = squeezed(capsys.readouterr().out)
    for line in squeezed(HOST_SHOWN).splitlines():
        assert line in shown
    assert "not a quiet host at y: the thread had a core for less than 95 % of the time" in shown
    assert "at x" not in shown


def squeezed(text: str) -> str:
    return re.sub(" +", " ", text)
