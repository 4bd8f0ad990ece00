"""`kvreg devices`: every card, or one with the sources of its facts; fast, and open to plug-ins."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvreg.cli.devices import sources_of
from kvreg.core import resolve

Run = Callable[..., "object"]


def test_the_table_shows_every_card_under_its_platform_and_no_arch(kvreg: Run) -> None:
    answer = kvreg("devices")

    lines = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    assert lines.index("cuda") < lines.index("rocm") < lines.index("xpu") < lines.index("cpu")
    rows = [line for line in lines if line.startswith("h200 ")]
    assert [row.split() for row in rows] == [["h200", "NVIDIA", "H200", "SXM", "sm_90", "132", "141", "4800", "-"]]
    assert not any(line.startswith("arch:") for line in lines)
    assert "\x1b" not in answer.out


def test_columns_are_aligned_and_no_line_ends_in_blanks(kvreg: Run) -> None:
    lines = kvreg("devices").out.splitlines()

    head = next(line for line in lines if line.startswith("device "))
    start = head.index("name")
    for line in lines[1 : lines.index("rocm") - 1]:
        assert line[start - 2 : start] == "  "
        assert line == line.rstrip()


def test_an_unknown_fact_reads_as_unknown(kvreg: Run) -> None:
    answer = kvreg("devices", "b300")

    assert any(line.split()[:2] == ["compute_units", "unknown"] for line in answer.out.splitlines())


def test_one_device_is_shown_with_the_source_of_each_fact(kvreg: Run) -> None:
    answer = kvreg("devices", "NVIDIA_H200")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0] == "h200: NVIDIA H200 SXM (matched by file name)"
    assert any(line.split() == ["compute_units", "132", "h100_glk"] for line in lines)
    assert any(line.startswith("h100_glk ") and "glennklockwood" in line for line in lines)
    assert lines[-1] == "kvreg select --device h200 --head-size 128"


def test_json_of_all_has_one_entry_a_card(kvreg: Run) -> None:
    document = kvreg("devices", "--json").document

    keys = [device["key"] for device in document["devices"]]
    assert document["schema"] == 1
    assert len(keys) == len(set(keys)) >= 46
    assert {"h200", "h200-nvl", "mi300x", "b580", "cpu"} <= set(keys)


def test_json_of_one_has_its_facts_sources_and_the_matching_rule(kvreg: Run) -> None:
    device = kvreg("devices", "gfx942:sramecc+:xnack-", "--json").document["device"]

    assert (device["key"], device["matched_by"], device["compute_units"]) == ("arch:gfx942", "arch", None)
    assert "compute units are unknown" in device["notes"][0]


def test_an_unknown_device_is_one_line_with_near_misses(kvreg: Run) -> None:
    answer = kvreg("devices", "h2000")

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "did you mean h200" in answer.err


def test_an_unknown_device_with_json_gives_candidates(kvreg: Run) -> None:
    answer = kvreg("devices", "A10G", "--json")

    assert (answer.code, answer.err) == (2, "")
    assert answer.document["error"]["code"] == "unknown_device"
    assert answer.document["error"]["candidates"][0] == "a10"


def test_a_fact_that_is_unknown_has_no_source() -> None:
    device = resolve.resolve("h200").device

    assert sources_of(device, "l2_bytes") == []
    assert [source["key"] for source in sources_of(device, "memory_gb")] == ["gpuconst"]
    assert sources_of(device, "platform") == []


def test_a_terminal_gets_a_drawn_table(home: Path) -> None:
    leader, follower = os.openpty()
    code = "from kvreg.cli.main import run; run(['devices'])"
    environment = {**os.environ, "KVREG_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    drawn = bytearray()
    with contextlib.suppress(OSError):  # a terminal whose last writer left reads as an error on Linux
        while part := os.read(leader, 65536):
            drawn += part
    os.close(leader)

    assert process.wait(timeout=60) == 0
    assert b"\x1b[" in drawn
    assert "NVIDIA H200 NVL" in drawn.decode()


LOADED = (
    "import atexit; atexit.register(lambda: print([name for name in"
    " ('torch', 'triton', 'numpy', 'yaml', 'pydantic', 'rich', 'importlib.metadata') if name in sys.modules]))"
)


@pytest.mark.parametrize("arguments", [("devices",), ("devices", "h200"), ("devices", "--json")])
def test_a_warm_start_loads_no_heavy_package(kvreg: Run, arguments: tuple[str, ...]) -> None:
    kvreg(*arguments)

    assert kvreg(*arguments, before=LOADED).out.splitlines()[-1] == "[]"


PLUGIN = '''
from pathlib import Path
from kvreg.core.backends import FolderBackend
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant, VariantId

class Madeup(FolderBackend):
    """A platform that exists in this test only."""

    name = platform = "madeup"

    def variants(self):
        return [
            Variant(VariantId(f"madeup-none-{op}", 1), op, Mode.NONE, "madeup", "exact", "kvreg_madeup:launch",
                    ("kvreg_madeup:launch",), lambda device, head: Format("bfloat16", None, None, None, "", None),
                    lambda device, request: {})
            for op in Op
        ]

def launch(*arguments): ...

BACKEND = Madeup(Path(__file__).parent)
'''
DEVICES = """\
schema: 1
platform: madeup
sources:
  page: {how: read, what: the maker's page}
devices:
- {key: madeup9000, name: Madeup 9000, platform: madeup, arch: mu9, compute_units: 7, memory_gb: 9,
   src: {memory: [page]}}
"""
MADE_UP = {f"madeup-none-{op}@1" for op in ("write", "decode", "prefill")}
FLEET = """\
schema: 1
sources: [.]
paths: {}
stacks: {machine: {}}
suites: {all: {tests: [tests]}}
runners:
"""
RUNNER = """\
- {{name: {name}, device: {device}, labels: [self-hosted], queue: q, suite: all, stacks: [machine]}}
"""


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Build a wheel of a plug-in, install it beside nothing else, and return the variables that put it on the path."""

    def install(source: str) -> dict[str, str]:
        wheel = tmp_path / "kvreg_madeup-1.0-py3-none-any.whl"
        info = "kvreg_madeup-1.0.dist-info"
        files = {
            "kvreg_madeup/__init__.py": source,
            "kvreg_madeup/devices.yaml": DEVICES,
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: kvreg-madeup\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[kvreg.backends]\nmadeup = kvreg_madeup:BACKEND\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        site = tmp_path / "site"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, timeout=120)
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}

    return install


def test_a_plug_in_from_a_wheel_brings_its_card(kvreg: Run, installed: Callable[[str], dict[str, str]]) -> None:
    assert "madeup9000" not in kvreg("devices").out

    environment = installed(PLUGIN)
    table = kvreg("devices", environment=environment)
    one = kvreg("devices", "Madeup_9000", "--json", environment=environment)
    arch = kvreg("devices", "mu9", "--json", environment=environment)

    assert (table.code, table.err) == (0, "")
    (row,) = [line for line in table.out.splitlines() if line.startswith("madeup9000")]
    assert row.split() == ["madeup9000", "Madeup", "9000", "mu9", "7", "9", "unknown", "-"]
    assert one.document["device"]["sources"]["memory"][0]["what"] == "the maker's page"
    assert arch.document["device"]["key"] == "arch:mu9"


@pytest.mark.skipif(find_spec("kvreg.cli.select") is None, reason="select is not part of this installation")
def test_select_judges_the_variants_of_a_plug_in(kvreg: Run, installed: Callable[[str], dict[str, str]]) -> None:
    environment = installed(PLUGIN)

    answer = kvreg(
        "select", "--device", "madeup9000", "--mode", "none", "--head-size", "64", "--json", environment=environment
    )

    # Nobody has validated them, so they are refused, each by name.
    assert answer.code == 3
    assert answer.document["device"]["key"] == "madeup9000"
    (result,) = answer.document["results"]
    assert {one["variant"] for one in result["decisions"]} == MADE_UP


def test_the_matrix_has_a_job_for_the_card_of_a_plug_in_and_misses_one_without_a_runner(
    kvreg: Run, installed: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    environment = installed(PLUGIN)
    fleet = tmp_path / "runners.yaml"
    runners = {"madeup": "madeup9000", "host": "cpu"}

    def asked(*names: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
        fleet.write_text(FLEET + "".join(RUNNER.format(name=name, device=runners[name]) for name in names))
        document = kvreg("ci", "matrix", "--runners", str(fleet), "--json", environment=environment).document
        jobs = [(job["device"], set(job["variants"])) for job in document["jobs"]]
        return jobs, {each["subject"] for each in document["findings"]}

    with_card, findings = asked("madeup")
    _, without = asked("host")

    assert with_card == [("madeup9000", MADE_UP)]
    assert not MADE_UP & findings
    assert without >= MADE_UP


def test_a_plug_in_s_family_is_a_valid_kvreg_backend(kvreg: Run, installed: Callable[[str], dict[str, str]]) -> None:
    environment = installed(PLUGIN)

    assert kvreg("devices", environment={**environment, "KVREG_BACKEND": "madeup"}).code == 0
    assert "one of madeup, torch, triton" in kvreg("devices", environment={**environment, "KVREG_BACKEND": "m"}).err


def test_a_plug_in_that_cannot_be_imported_is_one_warning(
    kvreg: Run, installed: Callable[[str], dict[str, str]]
) -> None:
    plain = kvreg("devices").out

    answer = kvreg("devices", environment=installed("import a_module_that_is_not_there"))

    assert (answer.code, answer.out) == (0, plain)
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(
        "kvreg: warning: plug-in madeup (kvreg_madeup:BACKEND) is left out: ModuleNotFoundError"
    )


def test_a_plug_in_with_a_broken_device_file_leaves_the_others(
    kvreg: Run, installed: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    environment = installed(PLUGIN)
    file = tmp_path / "site" / "kvreg_madeup" / "devices.yaml"
    file.write_text(DEVICES.replace("memory_gb", "memroy_gb"))

    answer = kvreg("devices", environment=environment)

    assert answer.code == 0
    assert "h200 " in answer.out
    assert "did you mean memory_gb?" in answer.err
    assert answer.err.count("\n") == 1
