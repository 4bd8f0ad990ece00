"""Drawing a bench: a file with every shape, and for a sweep a line for each batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg.bench import pays
from kvreg.bench.results import Compared, Results, row_of
from kvreg.bench.subjects import Subject
from kvreg.cli import bench_plot
from kvreg.core.errors import UsageError


def found(us: float) -> Results:
    shapes = pays.sweep([pays.Heads(32, 8, 128)], [1, 8], [256, 1024])
    subjects = [Subject("sdpa", "none", "SDPA bf16, dense"), Subject("kvreg", "int4_per_token_head", "a-decode@1")]
    values = {"status": "ok", "us": us, "e": 1e-3, "method": "graph"}
    return Results(
        1e12,
        [Compared(shape, tuple(row_of(shape, each, values) for each in subjects), 1e12) for shape in shapes],
    )


def test_ratios_and_a_sweep_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    bench_plot.draw(found(10.0), tmp_path / "a.png")
    bench_plot.draw_pays(found(10.0), tmp_path / "b.svg")

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "b.svg").read_text()
    assert "a-decode@1, batch 1 " in drawn.replace("<!-- ", "").replace(" -->", " ")
    assert "a-decode@1, batch 8 " in drawn.replace("<!-- ", "").replace(" -->", " ")


def test_nothing_to_draw_and_a_form_that_no_file_has_are_errors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    with pytest.raises(UsageError, match="a row with a time"):
        bench_plot.draw(Results(), tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"name a \.png or \.svg"):
        bench_plot.draw(found(10.0), tmp_path / "a.words")
