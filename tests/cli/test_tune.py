"""`kvreg tune` and `kvreg tune report` as commands: answers, files, exit codes. The device is the host's processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

WRITE = ("tune", "--device", "cpu", "--mode", "none", "--op", "write", "--head-size", "64", "--kv-heads", "2")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which writes of mode none were tuned for two buckets, and what the command said."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "work.yaml").write_text("schema: 1\nname: two\nwrite: [t64, t512]\n")
    asked = ("--workload", str(folder / "work.yaml"), "--effort", "quick", "--record", str(folder / "space.jsonl.gz"))
    done = kvreg(*WRITE, *asked, "--json", home=folder / "home")
    (folder / "home/answer.json").write_text(done.stdout)
    (folder / "home/stderr.txt").write_text(done.stderr)
    assert done.returncode == 0, done.stderr
    return folder / "home"


def kvreg(*arguments: str, home: Path, blocked: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
    block = "".join(f"import sys; sys.modules[{name!r}] = None; " for name in blocked)
    return subprocess.run(
        [sys.executable, "-c", block + "from kvreg.cli.main import run; run()", *arguments],
        capture_output=True,
        text=True,
        env={**kept, "KVREG_HOME": str(home)},
        timeout=200,
    )


def test_the_answer_is_one_document_with_every_figure(home: Path) -> None:
    document = json.loads((home / "answer.json").read_text())

    told = [document[name] for name in ("schema", "device", "effort", "source")]
    assert told == [1, "cpu", "quick", "measured"]
    assert [each["bucket"] for each in document["results"]] == ["t64", "t512"]
    for result in document["results"]:
        assert result["default"]["result"] == "ok"
        assert result["winner"]["us"] > 0
        assert result["winner"]["gate"]["seeds"] == 1
        assert result["finalists"][0]["config"] == result["default"]["config"]
        assert sum(result["trials"].values()) >= 3
        assert result["trials"]["constraint"] >= 1


def test_the_winner_is_written_whoever_it_is_and_a_select_takes_it(home: Path) -> None:
    document = json.loads((home / "answer.json").read_text())
    entries = yaml.safe_load((home / "tuned/cpu.yaml").read_text())["entries"]

    assert [each["bucket"] for each in entries] == ["t64", "t512"]
    assert [each["config"] for each in entries] == [each["winner"]["config"] for each in document["results"]]
    assert all(each["gate"]["same_bits_as_default"] for each in entries)
    asked = ("--mode", "none", "--head-size", "64", "--kv-heads", "2", "--q-heads", "8", "--batch", "50", "--json")
    selected = kvreg("select", "--device", "cpu", *asked, home=home)
    write = json.loads(selected.stdout)["results"][0]["ops"]["write"]
    assert (write["config_source"], write["config"]) == ("tuned", entries[0]["config"])


def test_every_trial_of_the_run_is_in_its_recording(home: Path) -> None:
    from kvreg_tuning import recording

    document = json.loads((home / "answer.json").read_text())
    found = recording.read(home.parent / "space.jsonl.gz")

    assert found.device == "cpu"
    assert len(found.trials) == sum(count for each in document["results"] for count in each["trials"].values())


def test_progress_goes_to_stderr_in_plain_lines(home: Path) -> None:
    lines = (home / "stderr.txt").read_text().splitlines()
    assert lines.pop().endswith("space.jsonl.gz")

    assert lines[0].startswith("torch-none-write@1 d64: ")
    assert any("finalists against the default" in line for line in lines)
    assert "\x1b" not in (home / "stderr.txt").read_text()


def test_a_second_call_runs_no_trial_again(home: Path) -> None:
    again = kvreg(*WRITE, "--workload", str(home.parent / "work.yaml"), "--effort", "quick", "--json", home=home)

    before = json.loads((home / "answer.json").read_text())
    assert json.loads(again.stdout)["results"] == before["results"]


def test_the_report_shows_every_bucket(home: Path, tmp_path: Path) -> None:
    plain = kvreg("tune", "report", home=home)
    document = json.loads(kvreg("tune", "report", "--device", "cpu", "--json", home=home).stdout)

    assert plain.returncode == 0, plain.stderr
    assert "torch-none-write@1 d64" in plain.stdout
    assert [each["bucket"] for each in document["results"]] == ["t64", "t512"]
    assert {trial["result"] for each in document["results"] for trial in each["trials"]} >= {"ok", "constraint"}
    assert document["results"][0]["seconds"]["gate"] > 0
    nothing = json.loads(kvreg("tune", "report", "--device", "h200", "--json", home=home).stdout)
    assert nothing["results"] == []


def test_a_plot_without_matplotlib_is_one_line(home: Path, tmp_path: Path) -> None:
    blocked = ("matplotlib", "matplotlib.figure")
    done = kvreg("tune", "report", "--plot", str(tmp_path / "a.png"), home=home, blocked=blocked)

    assert done.returncode == 2
    assert "kvreg[bench]" in done.stderr
    assert not (tmp_path / "a.png").exists()


def test_a_plot_is_drawn(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = kvreg("tune", "report", "--plot", str(tmp_path / "a.png"), home=home)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_optuna_that_is_asked_for_and_absent_is_one_line(tmp_path: Path) -> None:
    space = Path(__file__).parents[1] / "tuning/recorded/cpu-int4.jsonl.gz"
    done = kvreg("tune", "--simulate", str(space), "--search", "optuna", home=tmp_path / "home", blocked=["optuna"])

    # The recorded space is smaller than the effort's trials, so that every config is tried and no search is needed.
    assert done.returncode == 0, done.stderr
    assert "simulated; worst regret" in done.stdout


def test_an_estimate_without_torch_is_one_line(tmp_path: Path) -> None:
    done = kvreg("tune", "--device", "mi300x", "--op", "write", home=tmp_path, blocked=["torch"])

    assert done.returncode == 6
    assert done.stderr == (
        "kvreg: tune mi300x: required torch and Triton, whose compiler an estimate needs, found no module torch;"
        " install the kernels' packages: pip install 'kvreg[kernels]'\n"
    )


def test_a_recording_that_is_none_leaves_no_mark_in_a_new_home(tmp_path: Path) -> None:
    (tmp_path / "space.gz").write_text("nothing")
    done = kvreg("tune", "--simulate", str(tmp_path / "space.gz"), home=tmp_path / "home")

    assert done.returncode == 2
    assert not (tmp_path / "home").exists()


def test_no_improvement_ends_with_7_only_when_it_is_asked_for(tmp_path: Path) -> None:
    space = str(Path(__file__).parents[1] / "tuning/recorded/cpu-int4.jsonl.gz")
    plain = kvreg("tune", "--simulate", space, "--budget", "0.001s", home=tmp_path / "a")
    asked = kvreg("tune", "--simulate", space, "--budget", "0.001s", "--require-improvement", home=tmp_path / "b")

    assert (plain.returncode, asked.returncode) == (0, 7)
    assert "the budget ended the search" in asked.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ("--device", "cpu", "--budget", "soon"),
            2,
            "--budget: required a time such as 90s, 10m, 1.5h or 90 (seconds)",
        ),
        (("--device", "nosuch"), 2, "nosuch"),
        (("--device", "cpu", "--workload", "chatt"), 2, "chat"),
        (("--device", "cpu", "--variant", "torch-none-writ@1"), 2, "torch-none-write@1"),
        (("--device", "cpu", "--mode", "int5"), 2, "int4_per_token_head"),
        (("--device", "cpu", "--head-size", "33"), 3, "head"),
        (("--device", "cpu", "--model", ".", "--group", "4"), 2, "a model alone"),
        (("--device", "cpu", "--workload", "bench", "--group", "4"), 2, "a workload alone: it states heads and dtype"),
        (("--simulate", os.devnull), 2, "required a file, found a device"),
        (("report",), 2, "`kvreg tune` begins one"),
    ],
)
def test_what_cannot_be_asked_is_one_line(tmp_path: Path, arguments: Any, code: int, says: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/here").touch()  # so that no replay takes it for its own
    done = kvreg("tune", *arguments, home=tmp_path / "home")

    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "home/tune").exists()


def test_with_json_an_error_is_a_document(tmp_path: Path) -> None:
    done = kvreg("tune", "--device", "cpu", "--workload", "chatt", "--json", home=tmp_path)

    assert json.loads(done.stdout)["error"]["code"] == "usage"
    assert done.returncode == 2


def test_a_regret_of_more_replays_than_anybody_waits_for_is_a_usage_error(home: Path) -> None:
    done = kvreg("tune", "regret", str(home.parent / "space.jsonl.gz"), "--seeds", "1001", home=home)

    assert (done.returncode, done.stdout) == (2, "")
    assert "1001 is not in the range 1<=x<=1000" in done.stderr


TUNED = "schema: {}\ndevice: cpu\nenvironment: {{}}\nentries: []\n"


@pytest.mark.parametrize("more", [(), ("--budget", "12s", "--json")], ids=["text", "json"])
def test_a_file_of_a_newer_kvreg_is_refused_before_the_first_trial(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = tmp_path / "home/tuned/cpu.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TUNED.format(2))

    done = kvreg(*WRITE, *more, home=tmp_path / "home")

    assert done.returncode == 2
    said = json.loads(done.stdout)["error"]["message"] if more else done.stderr
    assert f"{path}: required schema 1, found schema 2" in said
    assert not (tmp_path / "home/tune").exists()
    assert path.read_text() == TUNED.format(2)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_no_winner_can_be_written_into_is_refused_before_the_first_trial(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "home/tuned/cpu.yaml"
    path.parent.mkdir(parents=True)
    make(path)

    done = kvreg(*WRITE, home=tmp_path / "home")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{path}: required a file that can be read and replaced" in done.stderr
    assert not (tmp_path / "home/tune").exists()


def test_a_file_that_may_not_be_read_is_refused_before_the_first_trial_and_check_says_so() -> None:
    with tempfile.TemporaryDirectory() as home:  # pytest's own folders are closed to others
        path = Path(home, "tuned/cpu.yaml")
        path.parent.mkdir(parents=True)
        path.write_text(TUNED.format(1))
        path.chmod(0)
        for folder in (path.parent.parent, path.parent):
            folder.chmod(0o777)

        tuned, checked = as_nobody(*WRITE, home=Path(home)), as_nobody("tuned", "check", home=Path(home))
        begun = Path(home, "tune").exists()

    assert tuned.returncode == 2
    assert f"{path}: required a file that can be read and replaced, found Permission denied" in tuned.stderr
    assert not begun
    assert checked.returncode == 4
    assert "give this user the right to read it" in checked.stdout
    assert "sets the file aside" not in checked.stdout


def as_nobody(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that root's rights do not help."""
    # Root may read everything, so the process gives that up; what it imports then must be anybody's to read.
    code = (
        "import difflib, os, sys\nimport kvreg.cli.tune, kvreg.cli.tuned, kvreg.core.registry\n"
        "import kvreg_tuning.planning, kvreg_tuning.stock, kvreg_tuning.store, kvreg_tuning.checking\n"
        "kvreg.core.registry.backends()\nfrom kvreg.cli.main import run\n"
        "os.geteuid() or os.seteuid(65534)\nrun(sys.argv[1:])"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env={**kept, "KVREG_HOME": str(home)}, timeout=100,
    )  # fmt: skip
