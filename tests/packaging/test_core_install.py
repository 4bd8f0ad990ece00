"""kvreg as `pip install` leaves it: four dependencies, no torch, no source tree in reach."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.checkout

ANYWHERE = ("select", "--device", "mi300x", "--head-size", "96", "--json")


@pytest.fixture
def kvreg(core, process, tmp_path):
    """Run the installed `kvreg` script in an empty folder."""

    def call(*arguments, codes=(0,)):
        command, home = [str(core.parent / "kvreg"), *arguments], {"KVREG_HOME": str(tmp_path / "home")}
        return process(command, cwd=tmp_path, environment=home, codes=codes)

    return call


def test_the_dependencies_fit_and_torch_is_not_among_them(core, pip, process):
    process([*pip(core), "check"])
    listed = process([*pip(core), "list", "--format", "json"]).stdout

    names = {each["name"].lower() for each in json.loads(listed)}
    assert {"kvreg", "click", "pydantic", "pyyaml", "rich"} <= names
    assert not {"torch", "triton", "numpy", "hatchling", "pytest"} & names


def test_kvreg_is_imported_from_the_environment_and_not_from_a_tree(core, process, tmp_path):
    code = "import kvreg, sys; print(kvreg.__file__); kvreg.select, kvreg.Mode, kvreg.errors"
    found = process([str(core), "-c", code], cwd=tmp_path).stdout

    assert found.startswith(str(core.parent.parent))


def test_select_answers_without_torch_as_it_does_in_the_tree(kvreg, root, process, tmp_path):
    tree = {"PYTHONPATH": ":".join(str(root / each) for each in ("", "backends", "tuning"))}
    tree["KVREG_HOME"] = str(tmp_path / "other")
    code = "from kvreg.cli.main import run; run()"

    wheel = kvreg(*ANYWHERE, codes=(0, 3))
    source = process([sys.executable, "-c", code, *ANYWHERE], cwd=tmp_path, environment=tree, codes=(0, 3))

    assert json.loads(wheel.stdout) == json.loads(source.stdout)
    assert wheel.returncode == source.returncode


def test_a_refused_head_size_ends_with_3_and_names_both_neighbours(kvreg):
    found = kvreg("select", "--device", "h200", "--head-size", "97", codes=(3,))

    assert "96 and 104" in found.stdout.splitlines()[0]
    assert found.stderr == ""


@pytest.mark.parametrize(
    "command", ["devices", "devices h200", "doctor", "evidence list", "evidence check --device cpu", "--version"]
)
def test_commands_that_need_no_torch_work_without_it(kvreg, command):
    assert kvreg(*command.split()).stdout.strip()


@pytest.mark.parametrize("command", ["select", "devices", "doctor", "validate", "evidence"])
def test_every_command_explains_itself_without_torch(kvreg, command):
    assert kvreg(command, "--help").stdout.startswith(f"Usage: kvreg {command}")


def test_validate_names_the_extra_that_it_needs(kvreg):
    found = kvreg("validate", "--device", "cpu", codes=(6,))

    assert "pip install 'kvreg[kernels]'" in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.long
def test_an_editable_install_runs_the_tree_it_was_made_from(core, copy_tree, environment, process, tmp_path):
    source = copy_tree(tmp_path / "source")
    python = environment(tmp_path / "venv", "--no-deps", "-e", str(source))
    # The dependencies are those of the other environment, behind all that was installed into this one.
    (dependencies,) = core.parent.parent.glob("lib/*/site-packages")
    (own,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (own / "zz-dependencies.pth").write_text(f"{dependencies}\n")
    packages = ("kvreg", "kvreg_triton", "kvreg_cuda", "kvreg_rocm", "kvreg_xpu", "kvreg_cpu", "kvreg_tuning")
    code = f"import {', '.join(packages)}\nfor each in ({', '.join(packages)}): print(each.__file__)"

    files = process([str(python), "-c", code], cwd=tmp_path).stdout.splitlines()

    assert len(files) == len(packages)
    assert all(file.startswith(f"{source}/") for file in files), files
    home = {"KVREG_HOME": str(tmp_path / "home")}
    found = process([str(python.parent / "kvreg"), *ANYWHERE], cwd=tmp_path, environment=home, codes=(0, 3))
    assert json.loads(found.stdout)["device"]["key"] == "mi300x"
