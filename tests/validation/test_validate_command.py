"""`kvreg validate` as a process: right kernels become evidence, others become rows, and nothing stops the run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvreg.core.traces import problems, read_trace


def statuses(document: dict) -> dict[str, str]:
    return {
        each["variant"].removeprefix("crooked-").removesuffix("@1"): each["status"] for each in document["results"]
    }


def listed(shop) -> list[str]:
    """The crooked variants on record; the shipped evidence is listed beside them."""
    found = json.loads(shop.run("evidence", "list", "--device", "cpu", "--json").stdout)["evidence"]
    return sorted(each["variant"] for each in found if each["variant"].startswith("crooked-"))


def failures(document: dict, name: str) -> list[dict]:
    return next(each for each in document["results"] if each["variant"] == f"crooked-{name}@1")["failures"]


def test_right_kernels_are_recorded_and_selected_and_not_validated_twice(shop) -> None:
    code, document = shop.validate("right", "store")

    assert code == 0
    assert statuses(document) == {"right": "passed", "store": "passed"}
    for each in document["results"]:
        trace = read_trace(Path(each["file"]))
        assert problems(trace, Path(each["file"])) == []
        assert (trace.device, trace.numerics, trace.build, trace.speed) == ("cpu", "device", "device", "none")
        assert trace.command.startswith("kvreg validate --device cpu --head-size 64")
        assert trace.id == each["trace"]
    assert listed(shop) == ["crooked-right@1", "crooked-store@1"]
    assert shop.run("evidence", "check", "--device", "cpu", "--strict").returncode == 0
    assert not list((shop.home / "validate").glob("*"))

    again = shop.run("validate", "--device", "cpu", "--head-size", "64", "--variant", "crooked-right", "--stale",
                     KVREG_BACKEND="crooked")  # fmt: skip

    assert again.returncode == 0
    assert again.stdout == "cpu: every variant has current evidence; nothing to validate\n"


@pytest.mark.long
def test_a_changed_kernel_is_stale_and_only_it_is_validated_again(shop) -> None:
    shop.validate("right", "store")
    kernels = shop.folder / "crooked_kernels.py"
    kernels.write_text(kernels.read_text().replace("store = write_none", "def store(*call):\n    write_none(*call)\n"))

    assert "stale" in shop.run("evidence", "check", "--device", "cpu").stdout
    code, document = shop.validate("right", "store", options=("--stale",))

    assert code == 0
    assert statuses(document) == {"store": "passed"}
    assert shop.run("evidence", "check", "--device", "cpu", "--strict").returncode == 0


def test_a_wrong_kernel_ends_with_5_leaves_no_trace_and_shows_its_numbers(shop) -> None:
    code, document = shop.validate("right", "shrunk")

    assert code == 5
    assert statuses(document) == {"right": "passed", "shrunk": "wrong"}
    found = failures(document, "shrunk")
    assert all(each["status"] == "wrong" for each in found)
    assert "rel_error" in found[0]["found"][0]
    assert "found 0.1" in found[0]["found"][0]  # an output times 0.9 is off by a tenth of itself
    assert [path.name for path in shop.home.glob("evidence/cpu/none/*.yaml")] == ["d64-decode-crooked-right.yaml"]


def test_a_write_that_spills_over_is_wrong(shop) -> None:
    code, document = shop.validate("spills-over")

    assert code == 5
    assert "untouched" in failures(document, "spills-over")[0]["found"][0]


def test_a_crash_in_one_cell_is_a_row_and_the_other_cells_run(shop) -> None:
    code, document = shop.validate("late", "right")

    assert code == 5
    assert statuses(document) == {"late": "wrong", "right": "passed"}
    found = failures(document, "late")
    crashed = [each for each in found if each["status"] == "crash"]
    assert crashed
    assert all("SIGSEGV" in each["found"][0] and each["cell"]["group"] == 7 for each in crashed)
    late = next(each for each in document["results"] if each["variant"] == "crooked-late@1")
    assert late["sequences"] > 0  # the cells of other groups have numbers


@pytest.mark.long
def test_an_exception_is_a_row_with_its_text(shop) -> None:
    code, document = shop.validate("raises")

    assert code == 5
    assert {each["status"] for each in failures(document, "raises")} == {"error"}
    assert failures(document, "raises")[0]["found"] == ["RuntimeError: no such tile"]


@pytest.mark.long
def test_a_kernel_that_keeps_crashing_is_given_up_and_others_go_on(shop) -> None:
    code, document = shop.validate("quits", "right")

    assert code == 5
    assert statuses(document) == {"quits": "wrong", "right": "passed"}
    counted = [each["status"] for each in failures(document, "quits")]
    assert 3 <= counted.count("crash") <= 4
    assert counted.count("skipped") == len(counted) - counted.count("crash") > 0


@pytest.mark.long
def test_a_hang_is_a_timeout_and_the_kernel_is_given_up(shop) -> None:
    code, document = shop.validate("hangs", options=("--cell-timeout", "2"))

    assert code == 5
    counted = [each["status"] for each in failures(document, "hangs")]
    assert 2 <= counted.count("timeout") <= 3
    assert counted.count("skipped") == len(counted) - counted.count("timeout") > 0
    assert "still running after 2 s" in failures(document, "hangs")[0]["found"][0]


def test_a_killed_run_goes_on_where_it_stopped(shop) -> None:
    journal = shop.folder / "run.jsonl"
    arguments = ("validate", "--device", "cpu", "--head-size", "64", "--seeds", "1", "--jobs", "1", "--json",
                 "--variant", "crooked-right", "--journal", str(journal))  # fmt: skip
    first = shop.popen(*arguments, KVREG_BACKEND="crooked")
    end = time.monotonic() + 120
    while time.monotonic() < end and not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = journal.read_bytes()
    done = before.count(b"\n")
    assert done >= 3

    second = shop.run(*arguments, KVREG_BACKEND="crooked")

    assert second.returncode == 0
    assert f"{done} known from the journal" in second.stderr
    assert journal.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    total = json.loads(second.stdout)["results"][0]["cells"]
    assert journal.read_bytes().count(b"\n") == total


@pytest.mark.long
def test_another_kernel_takes_nothing_from_the_journal(shop) -> None:
    journal = shop.folder / "run.jsonl"
    options = ("--journal", str(journal))
    shop.validate("store", options=options)
    lines = journal.read_bytes().count(b"\n")
    kernels = shop.folder / "crooked_kernels.py"
    kernels.write_text(kernels.read_text().replace("store = write_none", "def store(*call):\n    write_none(*call)\n"))

    shop.validate("store", options=options)

    assert journal.read_bytes().count(b"\n") == 2 * lines


def test_a_device_that_is_not_here_ends_with_6_and_says_what_is(shop) -> None:
    done = shop.run("validate", "--device", "h200", "--head-size", "64")

    assert done.returncode == 6
    assert done.stdout == ""
    assert done.stderr.startswith("kvreg: validate on h200: required that card in this machine, found ")
    assert "--interpreter" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--device", "cpu", "--head-size", "97"), 3, "head size 97: required 32 to 512 in steps of 8"),
        (("--device", "cpu", "--mode", "int5"), 2, "mode: required one of"),
        (("--device", "cpu", "--variant", "crooked-rihgt"), 2, "--variant: required one of"),
        (("--device", "cpu", "--interpreter"), 3, "required Triton variants"),
        (("--device", "nowhere9000"), 2, "nowhere9000"),
        (("--device", "cpu", "--seeds", "0"), 2, "--seeds"),
        (("--device", "cpu", "--seeds", "1001"), 2, "1001 is not in the range 1<=x<=1000"),
        (("--device", "cpu", "--seeds", "99999999999"), 2, "is not in the range 1<=x<=1000"),
    ],
)
def test_a_wrong_question_is_one_line_and_its_exit_code(shop, arguments, code: int, text: str) -> None:
    done = shop.run("validate", *arguments)

    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_mode_without_a_variant_of_the_family_is_refused(shop) -> None:
    done = shop.run("validate", "--device", "cpu", "--mode", "int4_per_token_head", KVREG_BACKEND="crooked")

    assert done.returncode == 3
    assert "required a variant of that mode on the platform" in done.stderr
    assert "its modes are none" in done.stderr


def test_write_repo_without_a_checkout_is_refused_before_any_work(shop) -> None:
    arguments = ("--device", "cpu", "--head-size", "64", "--variant", "crooked-store", "--write", "repo")
    done = shop.run("validate", *arguments, KVREG_BACKEND="crooked")

    assert done.returncode == 2
    assert "--write repo: required kvreg running from its checkout" in done.stderr
    assert not (shop.home / "validate").exists()


def test_write_repo_goes_to_the_folder_of_the_backend(shop) -> None:
    (shop.folder / "pyproject.toml").write_text("")

    code, document = shop.validate("store", options=("--write", "repo"))

    assert code == 0
    assert Path(document["results"][0]["file"]) == shop.folder / "evidence/cpu/none/d64-write-crooked-store.yaml"
    assert listed(shop) == ["crooked-store@1"]


def test_the_table_has_seven_columns_and_ends_with_the_next_command(shop) -> None:
    done = shop.run("validate", "--device", "cpu", "--head-size", "64", "--seeds", "1", "--variant", "crooked-store",
                    KVREG_BACKEND="crooked")  # fmt: skip

    header, row, _, where, command, _, contribute = done.stdout.splitlines()
    assert header.split() == ["variant", "head", "cells", "sequences", "worst", "cosine", "result"]
    assert row.split()[0] == "crooked-store@1"
    assert row.split()[-1] == "passed"
    assert where.startswith("1 traces in ")
    assert command.startswith("kvreg evidence show cpu-none-d64-write-")
    assert contribute.startswith("to contribute it: run the same in a checkout with --write repo")
    assert shop.run(*command.split()[1:]).returncode == 0


WITHOUT_TORCH = """
import json, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
sys.modules.pop("torch", None)
from kvreg.cli.main import status
for arguments in json.loads(sys.argv[1]):
    print(status(arguments), flush=True)
"""


def test_without_torch_wrong_words_come_first_and_then_the_pip_command(shop) -> None:
    asked = [
        ["validate", "--device", "nowhere9000"],
        ["validate", "--device", "cpu", "--mode", "int5"],
        ["validate", "--device", "cpu", "--mode", "none", "--variant", "torch-none-decod"],
        ["validate", "--device", "cpu", "--mode", "none", "--variant", "torch-none-decode"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(asked)],
        env=shop.environment(),
        cwd=shop.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout.split() == ["2", "2", "2", "6"]
    device, mode, variant, torch = done.stderr.splitlines()
    assert "device 'nowhere9000'" in device
    assert "mode: required one of none" in mode
    assert "--variant: required one of" in variant
    assert "did you mean torch-none-decode@1?" in variant
    assert torch.endswith("found no module torch; install the kernels' packages: pip install 'kvreg[kernels]'")


@pytest.mark.parametrize("option", [(), ("--journal", "run.jsonl")])
def test_a_home_that_cannot_be_written_is_exit_2_before_any_work(shop, option) -> None:
    arguments = ("--device", "cpu", "--head-size", "64", "--variant", "crooked-store", *option)
    done = shop.run("validate", *arguments, KVREG_BACKEND="crooked", KVREG_HOME="/proc/kvreg")

    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kvreg: KVREG_HOME: required a folder that can be written, found /proc/kvreg")
