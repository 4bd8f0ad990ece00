"""`ci/gpu` on a machine without a card: the same path at tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from kvreg.core import resolve
from kvreg.validation.archive import NAME
from kvreg.validation.gpu import main
from kvreg.validation.gpu.options import default_work

CALL = "import sys; from kvreg.validation.gpu import main; sys.exit(main())"


def gpu(folder: Path, *arguments: str, command: tuple[str, ...] = (sys.executable, "-c", CALL)):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("KVREG_") and name != "OUT"
    }
    environment |= {"KVREG_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [*command, "--device", "cpu", "--smoke", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def results(archive: Path) -> tuple[dict, list[str], str]:
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        document = json.load(tar.extractfile("results.json"))
        report = tar.extractfile("report.md").read().decode() if "report.md" in names else ""
    return document, names, report


def statuses(document: dict) -> dict[str, str]:
    return {each["name"]: each["status"] for each in document["stages"]}


def test_every_stage_runs_and_one_archive_is_left(tmp_path: Path) -> None:
    done = gpu(tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    document, names, report = results(tmp_path / "gpu-results" / NAME)
    assert (tmp_path / "gpu-results/work-cpu/journal.jsonl").is_file()
    found = statuses(document)
    assert "### smoke decode" in report  # of the bench
    assert "| graphs torch-none-decode@1 | ok |" in report  # of the robust stage
    assert {name for name, status in found.items() if status == "skipped"} == {
        "compile",
        "interchange",
        "step",
        "host",
        "pays",
        "tune",
        "space",
    }
    assert set(found.values()) == {"ok", "skipped"}
    assert {each["status"] for each in document["verdicts"]} == {"passed"}
    assert "## Attention, worst e" in report
    assert "int4_per_token_head" in report
    # Tiny batches are no evidence: their traces lie where nobody looks for any.
    assert not any("evidence" in name for name in names)
    assert not (tmp_path / "home" / "evidence").exists()


def test_a_cut_off_call_leaves_its_results_and_the_next_one_goes_on(tmp_path: Path) -> None:
    sizes = ("--head-size", "64", "--head-size", "128", "--head-size", "256", "--stages", "gate,traces")
    first = gpu(tmp_path, "--limit-s", "28", "--out", "first", "--work", "one", *sizes)

    assert first.returncode == 4, first.stdout
    document, _, _ = results(tmp_path / "first" / NAME)
    assert statuses(document)["gate"] == "cut off"
    known = (tmp_path / "one/journal.jsonl").read_bytes().count(b"\n")

    second = gpu(tmp_path, "--resume", "first", "--out", "second", "--work", "two", *sizes)

    assert second.returncode == 0, second.stdout
    assert f" parts, {known} known" in second.stdout
    document, _, _ = results(tmp_path / "second" / NAME)
    assert statuses(document)["traces"] == "ok"


@pytest.mark.long
def test_only_the_variant_that_is_named_is_judged(tmp_path: Path) -> None:
    done = gpu(tmp_path, "--only", "torch-none-decode", "--stages", "gate,traces")

    assert done.returncode == 0, done.stdout + done.stderr
    document, _, _ = results(tmp_path / "gpu-results" / NAME)
    assert {each["variant"] for each in document["verdicts"]} == {"torch-none-decode@1"}


@pytest.mark.long
def test_steps_and_host_times_are_measured_when_they_are_named(tmp_path: Path) -> None:
    done = gpu(tmp_path, "--stages", "step,host,pays,traces", "--head-size", "64", "--head-size", "96")

    document, _, report = results(tmp_path / "gpu-results" / NAME)
    assert done.returncode == 4, done.stdout  # no cell was judged, so that no trace could be written
    assert {name: statuses(document)[name] for name in ("step", "host", "pays")} == dict.fromkeys(
        ("step", "host", "pays"), "ok"
    )
    assert {row["status"] for row in document["step"]["rows"]} == {"ok"}
    assert {row["shape"] for row in document["host"]} == {"smoke decode", "smoke write"}
    assert {answer["head_size"] for answer in document["pays"]} == {96}
    assert "smoke: 2 layers, 2 x 40" in report
    assert "## Host" in report


def test_each_device_has_a_work_folder_of_its_own() -> None:
    keys = ("h200", "h200/mig-1g.18gb", "cpu")
    folders = [str(default_work(resolve.resolve(key).device)) for key in keys]

    assert folders == ["gpu-results/work-h200", "gpu-results/work-h200_mig-1g.18gb", "gpu-results/work-cpu"]


def test_a_stage_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()

    done = gpu(tmp_path, "--peer", "peer", "--stages", "determinism,interchange,traces")

    assert done.returncode == 5
    document, _, _ = results(tmp_path / "gpu-results" / NAME)
    found = statuses(document)
    assert (found["determinism"], found["interchange"]) == ("failed", "failed")
    detail = next(each["detail"] for each in document["stages"] if each["name"] == "interchange")
    assert "found no math_utils.py" in detail
    assert len(document["determinism"]) == 3  # the repeats that need no peer are there, one for each layout


def test_a_lost_device_ends_with_6_and_keeps_the_archive(tmp_path: Path) -> None:
    done = gpu(tmp_path, "--device", "h200")

    assert done.returncode == 6
    assert done.stderr.startswith("ci/gpu: validate on h200: required that card in this machine")
    assert not list(tmp_path.rglob("work*"))


def test_an_unknown_stage_is_named_with_the_known_ones(tmp_path: Path) -> None:
    done = gpu(tmp_path, "--stages", "gate,timing")

    assert done.returncode == 2
    assert "found 'timing'" in done.stderr
    assert "timings" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--head-size", "33"), "--head-size: required one that a variant serves"),
        (("--stages", "tune", "--variant", "triton-int4-write"), "--variant: required one of torch-int4-write@1"),
        (("--only", "torch-int4"), "--only: required one of torch-none-write@1"),
        (("--peer", "nowhere"), "--peer: required a folder, found nowhere"),
        (("--out", "/proc/nowhere"), "--out: required a folder to write to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_one_line_before_any_work(arguments, says, tmp_path: Path) -> None:
    done = gpu(tmp_path, *arguments)

    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"ci/gpu: {says}")
    assert len(done.stderr.splitlines()) == 1
    assert "stage" not in done.stdout
    assert not list(tmp_path.rglob("*.tar.gz"))


@pytest.mark.checkout
def test_the_script_runs_from_the_checkout_without_any_path_set(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "ci/gpu"

    done = gpu(tmp_path, "--stages", "probe", command=(sys.executable, str(script)))

    assert done.returncode == 0, done.stderr
    assert "stage probe: ok" in done.stdout


@pytest.mark.checkout
def test_a_python_without_what_it_needs_is_one_line_that_names_it_all(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (packages,) = bare.glob("lib/python*/site-packages")
    (packages / "yaml").symlink_to(Path(yaml.__file__).parent)
    python, script = bare / "bin/python", Path(__file__).parents[2] / "ci/gpu"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OUT")}

    done = subprocess.run(
        [str(python), str(script), "--smoke"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr == (
        f"ci/gpu: {python}: required torch, PyYAML, pydantic, click, found no torch, pydantic, click;"
        " install what is missing there, or name a Python that has it: PYTHON ci/gpu\n"
    )
    assert done.stdout == ""
    assert not (tmp_path / "gpu-results").exists()


@pytest.mark.long
def test_the_tuner_s_stages_leave_winners_races_and_a_recorded_space_of_every_subject(tmp_path: Path) -> None:
    work = ("--workload", "bench")
    first = gpu(tmp_path, "--stages", "tune", *work, "--out", "first", "--work", "one")
    second = gpu(tmp_path, "--stages", "tune,space", *work, "--resume", "first", "--out", "second", "--work", "two")

    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    before, _, _ = results(tmp_path / "first" / NAME)
    after, names, _ = results(tmp_path / "second" / NAME)
    shapes = ["32/8 x 64", "32/8 x 128"]
    assert [(each["shape"], each["bucket"], each["races"]) for each in before["tune"]] == [
        (shape, "t64", 2) for shape in shapes
    ]
    # Resumed from the journal in the archive: nothing was measured again. Two races that disagree leave a tie open.
    for result, again in zip(before["tune"], after["tune"], strict=True):
        assert result["same_winner"] in (1, 2)
        measured = ("variant", "shape", "bucket", "default_us", "races", "same_winner")
        kept = result.keys() if result["same_winner"] == 2 else measured
        assert {name: again[name] for name in kept} == {name: result[name] for name in kept}
    assert [each["shape"] for each in after["space"]] == shapes
    for recorded in after["space"]:
        assert recorded["trials"]["ok"] + recorded["trials"].get("slow", 0) == recorded["configs"]
        assert recorded["best_us"] <= recorded["default_us"]
    assert {"tune/journal.sqlite", "tune/cpu-int4.jsonl.gz", "tuned/cpu.yaml"} <= set(names)
    with tarfile.open(tmp_path / "second" / NAME) as tar:
        found = yaml.safe_load(tar.extractfile("tuned/cpu.yaml"))
    assert [(each["head_size"], each["bucket"]) for each in found["entries"]] == [(64, "t64"), (128, "t64")]


@pytest.mark.parametrize("device", [("--device", "cpu"), ("--device", "h200")], ids=["here", "not here"])
@pytest.mark.parametrize(
    "asked",
    [("--stages", "tune", "--workload", "nosuch"), ("--head-size", "60"), ("--resume", "nowhere")],
    ids=["workload", "head size", "resume"],
)
def test_a_call_that_can_be_done_nowhere_says_so_on_every_machine_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    asked: tuple[str, ...], device: tuple[str, str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUT", raising=False)

    assert main([*device, *asked]) == 2

    assert asked[-1] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
