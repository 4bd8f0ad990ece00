"""From journal lines to traces: the worst of everything, in the right place, and never over stronger evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvreg.core import registry, resolve
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.traces import problems, read_trace
from kvreg.validation.cells import PROFILES, Cell, work_list
from kvreg.validation.journal import Journal
from kvreg.validation.machine import Machine
from kvreg.validation.records import summary
from kvreg.validation.run import Run
from kvreg_tuning import resources

VERSIONS = {
    "kvreg": "0.1.0",
    "python": "3.12.3",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "driver": "580",
    "card": "H200",
}


def machine(numerics: str = "device") -> Machine:
    device = resolve.resolve("h200").device
    backends = tuple(each for each in registry.backends() if each.platform == "cuda")
    return Machine(device, backends, numerics, "cuda:0" if numerics == "device" else "cpu")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "run.jsonl") as it:
        yield it


def make_run(
    journal: Journal, numerics: str = "device", ops: tuple[Op, ...] = (Op.DECODE,), modes=(Mode.NONE,)
) -> Run:
    on = machine(numerics)
    portable = (v for v in on.variants() if v.id.name.startswith("triton-"))
    variants = tuple(v for v in portable if v.op in ops and v.mode in modes)
    cells = tuple(work_list(variants, (96,), PROFILES["smoke"]))
    run = Run(on, variants, cells, journal, "kvreg validate --device h200")
    run.versions = VERSIONS
    for variant in on.all_variants():
        run.hash_of(variant)
    return run


def row(cell: Cell, kind: str, context: int, e: float, cosine: float = 1.0, seed: int = 0) -> dict:
    if cell.kind == "write":
        return {"input": kind, "context": context, "seed": seed, "steps": e, "scale": e / 1e6, "zero": e, "bits": 0}
    return {"input": kind, "context": context, "seed": seed, "e": e, "cosine": cosine, "lse": 0.0}


def put(run: Run, cell: Cell, rows: list[dict], **changes) -> None:
    line = {"cell": cell.to_json(), "status": "ok", "error": "", "failures": [], "rows": rows, "resources": {}}
    line |= {"started": "2026-11-29T10:00:00.000Z", "ended": "2026-11-29T10:00:01.000Z", **changes}
    run.journal.append(run._key(cell), line)


def fill(run: Run) -> None:
    for number, cell in enumerate(run.cells):
        rows = [row(cell, kind, context, 1e-3) for kind in cell.inputs for context in cell.contexts]
        put(run, cell, rows, ended=f"2026-11-29T10:00:{number:02}.000Z")


def test_the_worst_sequence_is_found_and_placed(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal)
    fill(run)
    cell = next(c for c in run.cells if c.kind == "mixed" and c.layout == "inline.1")
    put(run, cell, [row(cell, "normal", 17, 4e-3, 0.9995), row(cell, "channel30", 64, 2e-3, 0.9991, seed=5)])

    (verdict,) = run.write(lambda variant: tmp_path / "evidence")

    assert verdict.trace is not None
    trace = read_trace(verdict.trace)
    assert problems(trace, verdict.trace) == []
    assert (trace.gate.max_rel_error, trace.gate.min_cosine) == (4e-3, 0.9991)
    worst = trace.gate.worst
    assert (worst.kind, worst.group, worst.layout, worst.input, worst.context, worst.seed) == (
        "mixed", 4, "inline.1", "normal", 17, 0,
    )  # fmt: skip
    assert {each.seed: each.max_rel_error for each in trace.seeds} == {0: 4e-3, 5: 2e-3}
    assert trace.gate.seeds == 2
    classes = {(c.kind, c.layout, c.input, c.context): c.max_rel_error for c in trace.classes}
    assert classes["mixed", "inline.1", "normal", 17] == 4e-3
    assert classes["decode", "planar.1", "channel30", 64] == 1e-3
    assert trace.layouts == ["planar.1", "inline.1"]
    assert trace.gate.cells == len(run.cells) == trace.log.lines
    assert trace.gate.limits["exact_normal"] == 5e-3
    assert trace.ended == max(line["ended"] for line in verdict.lines)


def test_a_write_carries_steps_and_named_checks(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal, ops=(Op.WRITE,), modes=(Mode.INT4_PER_TOKEN_HEAD,))
    for cell in run.cells:
        put(run, cell, [row(cell, "normal", 17, 0.5), row(cell, "channel30", 17, 0.25)])

    (verdict,) = run.write(lambda variant: tmp_path)

    trace = read_trace(verdict.trace)
    assert (trace.gate.max_step_error, trace.gate.max_rel_error, trace.gate.min_cosine) == (0.5, None, None)
    assert all(each.group is None and each.kind is None for each in trace.classes)
    found = next(each for each in trace.classes if each.input == "channel30")
    assert found.checks == {"scale_error": 2.5e-7, "zero_point_error": 0.25, "wrong_values": 0, "untouched": True}


@pytest.mark.parametrize("status", ["wrong", "crash", "timeout", "error", "skipped"])
def test_one_cell_that_did_not_pass_keeps_the_trace_back(journal: Journal, tmp_path: Path, status: str) -> None:
    run = make_run(journal)
    fill(run)
    put(run, run.cells[-1], [], status=status, error="no")

    (verdict,) = run.write(lambda variant: tmp_path / "evidence")

    assert verdict.status == "wrong"
    assert verdict.trace is None
    assert not (tmp_path / "evidence").exists()


def test_a_missing_cell_keeps_the_trace_back(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal)
    for cell in run.cells[1:]:
        put(run, cell, [row(cell, "normal", 17, 1e-3)])

    (verdict,) = run.write(lambda variant: tmp_path)

    assert (verdict.status, verdict.trace) == ("unfinished", None)


def test_times_stand_beside_mode_none_of_the_same_run(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal, modes=(Mode.INT4_PER_TOKEN_HEAD,))
    fill(run)
    point = {"batch": 32, "context": 8192, "group": 4, "us": 90.0, "spread": 0.01, "method": "graph",
             "fraction_of_limit": 0.7, "clock_mhz": 1980}  # fmt: skip
    alone = {**point, "batch": 1, "us": 8.0}
    base = next(v for v in run.machine.all_variants() if v.op is Op.DECODE and v.mode is Mode.NONE)
    assert (base.id, 96) in [(variant.id, size) for variant, size in run.timed()]
    run.journal.append(run._timing_key(run.variants[0], 96), {"status": "ok", "points": [point, alone]})
    run.journal.append(run._timing_key(base, 96), {"status": "ok", "points": [{**point, "us": 250.0}]})

    (verdict,) = run.write(lambda variant: tmp_path)

    trace = read_trace(verdict.trace)
    assert trace.speed == "measured"
    first, second = trace.timings
    assert (first.us, first.bf16_us, first.bf16_variant, first.fraction_of_limit) == (90.0, 250.0, str(base.id), 0.7)
    assert (second.us, second.bf16_us, second.bf16_variant) == (8.0, None, None)
    assert trace.log.lines == len(run.cells) + 1


def test_a_trace_without_times_says_so(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal)
    fill(run)
    (verdict,) = run.write(lambda variant: tmp_path)
    assert read_trace(verdict.trace).speed == "none"


def test_the_interpreter_never_replaces_what_the_device_has_shown(journal: Journal, tmp_path: Path) -> None:
    on_card = make_run(journal)
    fill(on_card)
    (first,) = on_card.write(lambda variant: tmp_path)
    with Journal(tmp_path / "other.jsonl") as other:
        interpreted = make_run(other, "interpreter")
        fill(interpreted)

        (kept,) = interpreted.write(lambda variant: tmp_path)

        assert (kept.trace, kept.kept) == (None, f"{first.trace_id} was made on the device itself and stays")
        assert read_trace(first.trace).numerics == "device"

        # A device trace of another kernel is stale; the interpreter's then says more.
        interpreted.hashes[str(interpreted.variants[0].id)] = "0" * 64
        fill(interpreted)
        (taken,) = interpreted.write(lambda variant: tmp_path)
        assert (read_trace(taken.trace).numerics, read_trace(taken.trace).build) == ("interpreter", "none")


def test_cells_away_from_the_grid_name_their_dtype_and_page(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal)
    spot = replace(run.cells[0], dtype="fp16", page=528)
    run.cells = (*run.cells, spot)
    fill(run)

    (verdict,) = run.write(lambda variant: tmp_path)

    places = {(each.dtype, each.page) for each in read_trace(verdict.trace).classes}
    assert places == {(None, None), ("fp16", 528)}


def test_resources_are_the_most_that_any_cell_takes(journal: Journal, tmp_path: Path) -> None:
    run = make_run(journal)
    fill(run)
    small = {"registers": 96, "spill_bytes": 0, "shared_bytes": 4096, "matrix_instruction": None}
    large = {"registers": 255, "spill_bytes": 16, "shared_bytes": 1024, "matrix_instruction": "mma.sync"}
    for cell, found in zip(run.cells, (small, large), strict=False):
        put(run, cell, [row(cell, "normal", 17, 1e-3)], resources=found)

    (verdict,) = run.write(lambda variant: tmp_path)

    assert read_trace(verdict.trace).resources == {
        "registers": 255, "spill_bytes": 16, "shared_bytes": 4096, "matrix_instruction": "mma.sync",
    }  # fmt: skip


def test_a_summary_of_nothing_judged_has_no_numbers() -> None:
    assert summary([])["worst"] is None


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        ({"ptx": "wgmma.mma_async.sync.aligned.m64n64k16 ... mma.sync"}, "wgmma"),
        ({"ptx": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"}, "mma.sync"),
        ({"ptx": "fma.rn.f32", "cubin": b"mma.sync"}, None),
        ({"amdgcn": "v_mfma_f32_32x32x8_bf16"}, "mfma"),
        ({"amdgcn": "v_wmma_f32_16x16x16_f16"}, "wmma"),
        ({"spv": b"intel_sub_group_bf16_bf16_matrix_mad_k16"}, "dpas"),
        ({}, None),
    ],
)
def test_the_matrix_instruction_is_read_from_the_text(texts, name) -> None:
    assert resources.matrix_instruction(texts) == name


def test_what_a_compiled_kernel_does_not_tell_stays_unknown() -> None:
    class Bare:
        asm = None

    assert resources.of_kernel(Bare()) == resources.UNKNOWN
    assert resources.worst([]) == resources.UNKNOWN
