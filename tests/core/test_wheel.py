"""The built wheel carries the derived index and answers from it, away from every source tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kvreg
from kvreg.core import shards
from kvreg.core.index import MANIFEST

ROOT = Path(kvreg.__file__).parent.parent

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a wheel is built from, so that a build leaves the checkout alone."""
    pytest.importorskip("hatchling")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("kvreg is installed here, there is no source tree to build")
    copy = tmp_path_factory.mktemp("source")
    for name in ("kvreg", "backends", "tuning"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    (copy / "README.md").write_text("kvreg\n")
    (copy / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "expectations.yaml", copy / "ci")
    return copy


def build(source, place):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build(source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's content, as pip lays it down."""
    place = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run(installed, home, *arguments, before=""):
    code = f"import sys\n{before}\nfrom kvreg.cli.main import run\nrun(sys.argv[1:])"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**kept, "PYTHONPATH": str(installed), "KVREG_HOME": str(home)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_carries_an_index_of_every_built_in_backend(installed):
    manifest = shards.read(installed / "kvreg" / "_index" / f"{MANIFEST}.json", MANIFEST, MANIFEST, None)

    assert manifest["backends"] == ["cuda", "rocm", "xpu", "cpu"]
    assert all(len(digest) == 64 for sources in manifest["sha256"].values() for digest in sources.values())
    assert all("devices" in sources for sources in manifest["sha256"].values())


def test_the_first_select_of_a_wheel_reads_no_yaml_and_writes_no_index(installed, tmp_path):
    home = tmp_path / "home"
    loaded = "import atexit; atexit.register(lambda: print([n for n in ('yaml', 'pydantic') if n in sys.modules]))"

    done = run(installed, home, "select", "--device", "h200", "--head-size", "97", before=loaded)

    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[0].startswith("refused: every mode on h200")
    assert done.stdout.splitlines()[-1] == "[]"
    assert not (home / "cache" / "index").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that root cannot write either")
def test_a_wheel_lacks_no_index_where_the_home_cannot_be_written(installed):
    found = run(installed, Path("/proc/home"), "doctor")
    answered = run(installed, Path("/proc/home"), "select", "--device", "h200", "--head-size", "96")

    assert "\nindex: shipped with the package\n" in found.stdout
    assert "missing: KVREG_HOME: /proc/home cannot be written: no overlay, no journal; " in found.stdout
    assert (answered.returncode, answered.stderr) == (0, "")


def test_the_wheel_and_the_checkout_give_one_answer(installed, tmp_path):
    arguments = ("select", "--device", "mi300x", "--head-size", "96", "--json")

    assert run(installed, tmp_path / "a", *arguments).stdout == run(ROOT_PATHS, tmp_path / "b", *arguments).stdout


ROOT_PATHS = os.pathsep.join(str(ROOT / name) for name in ("", "backends", "tuning"))


@pytest.mark.long
def test_evidence_is_checked_from_a_bare_wheel(installed, tmp_path):
    done = run(installed, tmp_path / "home", "evidence", "check")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound" in done.stdout


@pytest.mark.long
def test_two_builds_of_one_tree_are_equal(source, wheel, tmp_path):
    assert build(source, tmp_path).read_bytes() == wheel.read_bytes()


def test_a_build_leaves_no_index_in_the_tree(source, wheel):
    assert not (source / "kvreg" / "_index").exists()
    assert wheel.exists()
