"""What the wheel holds and declares."""

from __future__ import annotations

import tomllib
import zipfile
from email import message_from_bytes, message_from_string
from importlib import metadata
from pathlib import Path

import pytest

PLATFORMS = ("kvreg_triton", "kvreg_cuda", "kvreg_rocm", "kvreg_xpu", "kvreg_cpu")
SOURCES = {"kvreg": "kvreg", "kvreg_tuning": "tuning/kvreg_tuning", **{name: f"backends/{name}" for name in PLATFORMS}}


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def needed(root):
    """Every file of the packages that is not made by running them."""
    for package, source in SOURCES.items():
        for path in (root / source).rglob("*"):
            inside = path.relative_to(root / source)
            if path.is_file() and not {"__pycache__", "_index"} & set(inside.parts):
                yield (Path(package) / inside).as_posix()


@pytest.mark.checkout
def test_every_file_of_the_packages_is_in_the_wheel(root, names):
    wanted = set(needed(root))

    assert wanted - names == set()
    assert {
        "kvreg/py.typed",
        "kvreg_cuda/devices.yaml",
        "kvreg_cpu/devices.yaml",
        "kvreg/_index/manifest.json",
    } <= names


@pytest.mark.checkout
def test_every_device_file_trace_and_log_is_in_the_wheel(root, names):
    data = {name for name in needed(root) if name.endswith((".yaml", ".jsonl.gz"))}

    assert len(data) >= 4
    assert data <= names


@pytest.mark.checkout
def test_nothing_else_is_in_the_wheel(root, names):
    beyond = {name for name in names if name.split("/")[0] not in SOURCES}

    assert all(name.split("/")[0].endswith(".dist-info") for name in beyond)
    assert not [name for name in names - beyond - set(needed(root)) if not name.startswith("kvreg/_index/")]


@pytest.mark.checkout
def test_the_wheels_metadata_says_what_pyproject_says(root, wheel):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (place,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        found = message_from_bytes(archive.read(f"{place}/METADATA"))
        points = archive.read(f"{place}/entry_points.txt").decode()
        licence = archive.read(f"{place}/licenses/LICENSE")

    assert (found["Name"], found["Version"]) == ("kvreg", project["version"])
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert licence == (root / "LICENSE").read_bytes()
    assert "kvreg = kvreg.cli.main:run" in points
    assert "[pytest11]\nkvreg.pytest = kvreg.pytest" in points
    assert found.get_payload().strip() == (root / "README.md").read_text().strip()


@pytest.mark.checkout
def test_core_needs_four_packages_and_the_extra_kernels_adds_torch_and_triton(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = message_from_string(archive.read(place).decode())
    core, kernels = set(), set()
    for requirement in found.get_all("Requires-Dist"):
        name = requirement.split(";")[0].split(">")[0].split("<")[0].strip()
        if "extra ==" not in requirement:
            core.add(name)
        elif "'kernels'" in requirement:
            kernels.add(name)

    assert core == {"click", "pydantic", "pyyaml", "rich"}
    assert kernels == {"numpy", "torch", "triton"}


def test_the_installed_distribution_offers_the_extra_kernels():
    try:
        found = metadata.metadata("kvreg")
    except metadata.PackageNotFoundError:
        pytest.skip("kvreg runs from a source tree here")

    assert {"kernels", "dev"} <= set(found.get_all("Provides-Extra"))
