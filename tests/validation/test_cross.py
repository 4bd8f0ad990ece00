"""Validation without the card: every figure on record is the compiler's, and select launches what was compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import triton

from kvreg.core import device_files, registry
from kvreg.core.devices import ARCH_PREFIX, folder_name
from kvreg.core.traces import Trace, problems, read_log, read_trace
from kvreg.core.variants import Variant
from kvreg.validation.cross import CrossRun, Subject
from kvreg_triton.cross import readings, verdicts
from kvreg_triton.cross.compilations import Compiled, Compiler
from kvreg_triton.cross.specializations import Specialization
from kvreg_triton.cross.verdicts import Limits, Tried

INT4 = "int4_per_token_head"
ANSWER = ("status", "seconds", "reading", "error", "triton")
"""Fields of a log line that the compiler gave."""


@dataclass(frozen=True)
class Record:
    """One shipped cross build."""

    file: Path
    trace: Trace
    lines: tuple[dict, ...]

    @property
    def variant(self) -> Variant:
        backends = [each for each in registry.backends() if each.platform == self.trace.platform]
        return next(v for each in backends for v in each.variants() if str(v.id) == self.trace.variant)

    def tried(self, limits: Limits) -> list[Tried]:
        """Judge the log anew."""
        by_config: dict[str, dict[str, Compiled]] = {}
        for line in self.lines:
            result = Compiled(**{name: line[name] for name in ANSWER})
            by_config.setdefault(json.dumps(line["config"]), {})[line["form"]] = result
        return [self._judged(json.loads(config), compiled, limits) for config, compiled in by_config.items()]

    def _judged(self, config: dict, compiled: dict[str, Compiled], limits: Limits) -> Tried:
        found = [
            fault
            for form, result in compiled.items()
            for fault in verdicts.faults(
                form,
                result,
                limits,
                matrix=self.variant.matrix_instruction and form.partition(",")[0] != "reduce",
            )
        ]
        return Tried(config, compiled, tuple(found))


FOLDERS = tuple(
    path for each in registry.backends() for path in sorted(each.evidence_dir.glob(f"{folder_name(ARCH_PREFIX)}*"))
)


@cache
def shipped() -> tuple[Record, ...]:
    files = [path for folder in FOLDERS for path in sorted(folder.glob("*/*.yaml"))]
    traces = [(path, read_trace(path)) for path in files]
    return tuple(Record(path, trace, tuple(read_log(path))) for path, trace in traces if trace.build == "cross")


def limits_of(record: Record) -> Limits:
    device = next(each for each in device_files.devices() if each.key == record.trace.device)
    return Limits(device.arch, device.shared_per_block_max_bytes)


def test_there_are_records_for_every_platform_that_triton_compiles_for() -> None:
    assert {record.trace.platform for record in shipped()} >= {"cuda", "rocm"}
    assert not [record.file for record in shipped() if problems(record.trace, record.file)]


def test_every_verdict_on_record_follows_from_the_compilers_figures_beside_it() -> None:
    for record in shipped():
        choice = verdicts.choose(record.tried(limits_of(record)))
        refusals = [each.model_dump() for each in record.trace.refusals or ()]
        if choice.taken is None:
            assert refusals == [each.to_json() for each in choice.faults], record.file
        else:
            assert (refusals, dict(choice.taken.config)) == ([], record.trace.config), record.file
            found = {form: dict(each.reading) for form, each in choice.taken.compiled.items()}
            assert record.trace.resources == readings.worst(found), record.file


def test_select_launches_the_parameters_that_were_compiled() -> None:
    for record in shipped():
        device = next(each for each in device_files.devices() if each.key == record.trace.device)
        subject = Subject(record.variant, record.trace.head_size)
        backend = next(each for each in registry.backends() if each.platform == device.platform)
        request = CrossRun(device, backend, Compiler(), ("none", "none", 0)).request(subject)
        if record.trace.refusals is None:
            assert dict(subject.variant.default_config(device, request)) == record.trace.config, record.file


def again(record: Record, forms: set[str] | None = None) -> None:
    """Compile what a record names anew; every figure must be the recorded one."""
    if record.trace.versions["triton"] != triton.__version__:
        pytest.skip(f"its figures are those of Triton {record.trace.versions['triton']}")
    lines = [line for line in record.lines if forms is None or line["form"] in forms]
    assert lines
    compiled = Compiler(jobs=2).run([Specialization.from_json(line["specialization"]) for line in lines])
    for index, result in compiled:
        recorded = lines[index]["reading"]
        # Of NVIDIA's machine code more is read since than stands on record.
        found = {name: result.reading[name] for name in recorded}
        assert (result.status, found) == (lines[index]["status"], recorded), record.file


@pytest.mark.parametrize(
    ("arch", "form"),
    [pytest.param("gfx942", "attend split, wide", marks=pytest.mark.long), ("sm_86", "attend split")],
    ids=["gfx942", "sm_86"],
)
def test_a_recorded_figure_is_what_the_compiler_says_again(arch, form) -> None:
    wanted = (arch, INT4, 128, "decode")
    record = next(
        each for each in shipped() if (each.trace.arch, each.trace.mode, each.trace.head_size, each.trace.op) == wanted
    )

    again(record, {form})


@pytest.mark.long
@pytest.mark.parametrize("folder", sorted(path.name for path in FOLDERS))
def test_every_figure_of_int4_at_128_is_what_the_compiler_says_again(folder) -> None:
    for record in shipped():
        of = (record.file.parts[-3], record.trace.mode, record.trace.head_size)
        if of == (folder, INT4, 128):
            again(record)


@pytest.fixture
def kvreg(tmp_path: Path):
    """Run the command line outside every source tree, with a home of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
        variables = {**inherited, "KVREG_HOME": str(tmp_path / "home")}
        code = "import sys; from kvreg.cli.main import run; run(sys.argv[1:])"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], env=variables, capture_output=True, text=True, timeout=300
        )

    return run


def test_a_compilation_leaves_evidence_and_the_next_one_takes_its_answers_from_disk(kvreg, tmp_path) -> None:
    call = ("validate", "--compile", "--device", "a10", "--variant", "triton-int4-write", "--head-size", "128")
    first = kvreg(*call, "--json")
    assert first.returncode == 0, first.stderr

    (arch,) = json.loads(first.stdout)["archs"]
    (result,) = arch["results"]
    assert (arch["device"], arch["shared_bytes_limit"], result["status"]) == ("arch:sm_86", 101376, "compiled")
    assert result["resources"]["registers"] > 0
    trace = read_trace(Path(result["file"]))
    assert problems(trace, Path(result["file"])) == []
    assert (trace.numerics, trace.build, trace.speed) == ("interpreter", "cross", "none")
    assert trace.basis is not None
    (line,) = read_log(Path(result["file"]))
    assert line["reading"] == result["tried"][0]["compiled"]["write"]["reading"]

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "home/cache/compiled").rglob("*.json")}
    assert len(kept) == 1
    second = kvreg(*call)
    assert second.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert "triton-int4-write@1  128" in second.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--arch", "sm_86"), 2, "required --compile for --arch, found --arch alone; add --compile"),
        (("--compile", "--arch", "sm_86", "--stale"), 2, "found --stale"),
        (("--compile",), 2, "required --device or --arch"),
        (("--compile", "--device", "cpu"), 3, "required a platform that a Triton compiles for"),
        (("--compile", "--arch", "sm_86", "--mode", "int5"), 2, "mode: required one of"),
    ],
)
def test_a_wrong_question_is_one_line_and_its_exit_code(kvreg, arguments, code, words) -> None:
    answer = kvreg("validate", *arguments)

    assert (answer.returncode, answer.stdout) == (code, "")
    assert words in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_mode_that_the_arch_cannot_have_is_refused_before_anything_is_compiled(kvreg, tmp_path) -> None:
    answer = kvreg("validate", "--compile", "--arch", "sm_80", "--mode", "fp8_per_tensor", "--head-size", "96")

    assert answer.returncode == 3
    assert "fp8 type: required e4m3fn on sm_80, found only e5m2; take --mode int8_per_token_head" in answer.stdout
    assert "no trace was written" in answer.stdout
    assert not list((tmp_path / "home").rglob("cache/compiled/*"))
