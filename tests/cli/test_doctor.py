"""`kvreg doctor`: what is here, what is missing, and the command that mends it; with and without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvreg.core.supported import PACKAGES, PYTHON, Supported

Run = Callable[..., "object"]

HIDDEN = """
from importlib import metadata
found = metadata.version
def version(name):
    if name in VERSIONS:
        if VERSIONS[name] is None:
            raise metadata.PackageNotFoundError(name)
        return VERSIONS[name]
    return found(name)
metadata.version = version
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "triton", "numpy"):
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Forbidden())
"""


def with_versions(**versions: str | None) -> str:
    """Return code that makes importlib.metadata report `versions` and forbids importing the packages."""
    return f"VERSIONS = { ({name.replace('_', '-'): value for name, value in versions.items()})!r}\n{HIDDEN}"


SOUND = with_versions(torch="2.11.0", triton="3.6.0", numpy="2.0.0")


@pytest.fixture
def card(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Put an nvidia-smi on PATH that reports one card."""

    def report(line: str) -> dict[str, str]:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho '{line}'\n")
        tool.chmod(0o755)
        return {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"}

    return report


def test_a_machine_without_torch_can_still_select(kvreg: Run) -> None:
    answer = kvreg("doctor", before=with_versions(torch=None, triton=None, numpy=None))

    assert (answer.code, answer.err) == (0, "")
    assert "missing: torch: kernels cannot run without it; select can; pip install 'kvreg[kernels]'" in answer.out
    assert answer.out.splitlines()[-1].startswith("select can work: kvreg select --device ")


def test_a_sound_machine_misses_nothing(kvreg: Run) -> None:
    document = kvreg("doctor", "--json", before=SOUND).document

    assert document["ok"] is True
    assert document["missing"] == []
    assert [(one["name"], one["state"]) for one in document["packages"]] == [
        ("torch", "ok"),
        ("triton", "ok"),
        ("numpy", "ok"),
    ]
    assert [(one["name"], one["state"]) for one in document["backends"]] == [
        (name, "ok") for name in ("cuda", "rocm", "xpu", "cpu")
    ]


@pytest.mark.parametrize(
    ("versions", "name", "state", "command"),
    [
        ({"torch": "2.10.1"}, "torch", "too old", "pip install 'torch>=2.11'"),
        ({"triton": "3.10.0"}, "triton", "too new", "pip install 'triton>=3.6,<3.10'"),
        ({"triton": "3.5.1"}, "triton", "too old", "pip install 'triton>=3.6,<3.10'"),
    ],
)
def test_a_version_outside_the_range_is_named_with_the_command(
    kvreg: Run, versions: dict[str, str], name: str, state: str, command: str
) -> None:
    sound = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.0.0"}
    document = kvreg("doctor", "--json", before=with_versions(**{**sound, **versions})).document

    (package,) = [one for one in document["packages"] if one["name"] == name]
    (missing,) = document["missing"]
    assert package["state"] == state
    assert (missing["what"], missing["remedy"]) == (name, command)
    assert versions[name] in missing["why"]


def test_a_card_is_shown_with_its_device_and_driver(kvreg: Run, card: Callable[[str], dict[str, str]]) -> None:
    environment = card("NVIDIA H200, 9.0, 0x233510DE, 143771, 570.86.15, Disabled")
    answer = kvreg("doctor", before=SOUND, environment=environment)

    assert any(
        line.split() == ["0", "NVIDIA", "H200", "h200", "sm_90", "150.8", "570.86.15"]
        for line in answer.out.splitlines()
    )
    assert answer.out.splitlines()[-1] == "select can work: kvreg select --device h200 --head-size 128"


def test_an_unlisted_card_is_shown_with_the_arch_that_serves_it(
    kvreg: Run, card: Callable[[str], dict[str, str]]
) -> None:
    environment = card("NVIDIA A10G, 8.6, 0x223710DE, 23028, 570.1, [N/A]")
    (found,) = kvreg("doctor", "--json", before=SOUND, environment=environment).document["cards"]

    assert found["device"] == "arch:sm_86"
    assert "not in the device files" in found["notes"][0]


def test_a_torch_of_another_build_than_the_card_needs_is_named(
    kvreg: Run, card: Callable[[str], dict[str, str]]
) -> None:
    environment = card("NVIDIA H200, 9.0, 0x233510DE, 143771, 570.1, Disabled")
    before = with_versions(torch="2.11.0+cpu", triton="3.6.0", numpy="2.0.0")
    (missing,) = kvreg("doctor", "--json", before=before, environment=environment).document["missing"]

    assert missing["why"] == "torch 2.11.0+cpu is built for cpu, the card here needs cuda"
    assert missing["remedy"] == "pip install --force-reinstall 'torch>=2.11'"


def test_two_tritons_in_one_environment_are_named(kvreg: Run) -> None:
    before = with_versions(torch="2.11.0", triton="3.6.0", numpy="2.0.0", triton_xpu="3.3.0b1")
    document = kvreg("doctor", "--json", before=before).document

    assert "overwritten the other" in document["missing"][0]["why"]


def test_a_home_that_cannot_be_written_is_named(kvreg: Run, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        home = "/proc/kvreg"  # root may write everywhere else
    else:
        (tmp_path / "locked").mkdir(mode=0o555)
        home = str(tmp_path / "locked" / "home")
    document = kvreg("doctor", "--json", before=SOUND, environment={"KVREG_HOME": home}).document

    assert document["ok"] is True
    assert document["home_writable"] is False
    assert document["missing"][0]["remedy"] == "set KVREG_HOME to a folder of yours"
    assert ("no index" in document["missing"][0]["why"]) == ("cannot be kept" in document["index"])  # a wheel has one


def test_wrong_variables_are_findings_and_doctor_goes_on(kvreg: Run, tmp_path: Path) -> None:
    wrong = {"KVREG_DEVICE": "h2000", "KVREG_BACKEND": "trition", "KVREG_LOG": "loud"}
    answer = kvreg("doctor", before=SOUND, environment=wrong)

    assert answer.code == 4
    assert "missing: KVREG_BACKEND: required one of torch, triton, found trition; did you mean triton?" in answer.out
    assert "missing: KVREG_LOG: required one of debug, info, warning, error, found loud; " in answer.out
    assert "missing: KVREG_DEVICE: device 'h2000': required a key, name, PCI id or architecture" in answer.out
    assert "backend  platform" in answer.out
    last = answer.out.splitlines()[-1]
    assert last == "select cannot work: KVREG_BACKEND and KVREG_LOG and KVREG_DEVICE must be mended or unset"


def test_a_home_that_is_a_file_is_one_finding(kvreg: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = kvreg("doctor", "--json", before=SOUND, environment={"KVREG_HOME": str(tmp_path / "file" / "home")})

    assert answer.code == 4
    assert [one["what"] for one in answer.document["missing"]] == ["KVREG_HOME"]
    assert answer.document["ok"] is False


def test_doctor_leaves_no_folder_behind_in_a_new_home_but_its_caches(kvreg: Run, home: Path) -> None:
    kvreg("doctor", before=SOUND)

    assert not home.exists() or [path.name for path in home.iterdir()] == ["cache"]


def test_without_any_variant_select_cannot_work_and_doctor_finds_that(kvreg: Run) -> None:
    broken = "import types\nfor name in ('kvreg_triton.variants', 'kvreg_cpu.variants'): sys.modules[name] = None\n"
    answer = kvreg("doctor", before=SOUND + broken)

    assert answer.code == 4
    assert answer.out.splitlines()[-1].startswith("select cannot work")
    assert "missing: backend cuda: ModuleNotFoundError" in answer.out


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("2.11", True),
        ("2.11.0+cu128", True),
        ("2.10.9", False),
        ("3.0", False),
        ("2.11.0a0+git1", True),
        ("junk", False),
    ],
)
def test_a_range_holds_its_least_and_not_its_end(version: str, inside: bool) -> None:
    assert Supported("2.11", "3.0").holds(version) is inside


@pytest.mark.checkout
def test_the_ranges_are_those_of_pyproject() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    stated = {
        line.partition(">")[0]: line.partition(";")[0].strip() for line in project["optional-dependencies"]["kernels"]
    }
    assert stated == {name: f"{name}{supported}" for name, supported in PACKAGES.items()}
    assert project["requires-python"] == str(PYTHON)
