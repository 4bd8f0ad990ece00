"""The wheel, and an environment that holds it and its core dependencies alone; both made once for all workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvreg

ROOT = Path(kvreg.__file__).resolve().parents[1]
BUILD_INPUTS = (
    "kvreg",
    "backends",
    "tuning",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    "ci/expectations.yaml",
)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    assert (ROOT / "pyproject.toml").exists(), "tests of the checkout run with PYTHONPATH on its tree"
    return ROOT


@pytest.fixture(scope="session")
def copy_tree(root: Path) -> Callable[[Path], Path]:
    """A function that copies what a wheel is built from, so that nothing is built or planted in the checkout."""

    def copy(place: Path) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        for name in BUILD_INPUTS:
            if (root / name).is_dir():
                shutil.copytree(root / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "_index"))
            else:
                (place / name).parent.mkdir(exist_ok=True)
                shutil.copy(root / name, place / name)
        return place

    return copy


@contextmanager
def once(shared: Path) -> Iterator[bool]:
    """Hold a lock that every test process of this run shares; give whether the work was done before."""
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield (shared / "done").exists()
        (shared / "done").touch()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run see."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def wheel(shared: Path, copy_tree: Callable[[Path], Path]) -> Path:
    """The wheel that ci/test has built, else one built here."""
    given = os.environ.get("BUILT_WHEEL")
    if given:
        return Path(given)
    place = shared / "wheel"
    with once(place) as done:
        if not done:
            source = copy_tree(place / "source")
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
            run(command, cwd=source)
    (built,) = (place / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def core(shared: Path, wheel: Path, root: Path) -> Path:
    """The python of an environment into which `pip install kvreg` went: no torch, no numpy."""
    place = shared / "core"
    python = place / "venv" / "bin" / "python"
    with once(place) as done:
        if not done:
            make_environment(place / "venv", root, str(wheel))
    return python


def make_environment(folder: Path, root: Path, *wanted: str) -> Path:
    """Make an environment with what is wanted, builds included in the pinned versions; return its python."""
    # pip of the tests' own environment works on the new one: bringing it a pip of its own takes longer than the rest.
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    pins = {"PIP_CONSTRAINT": str(root / "ci" / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run([*pip_of(python), "install", "-qq", *wanted], environment=pins)
    return python


def pip_of(python: Path) -> list[str]:
    """Return the start of a pip command that works on another environment."""
    return [sys.executable, "-m", "pip", "--python", str(python)]


def run(
    command: list[str],
    *,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    codes: tuple[int, ...] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run a command without PYTHONPATH and KVREG_* of the caller; fail unless it ends with one of `codes`."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith(("KVREG_", "PYTEST_"))}
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **(environment or {})}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in codes, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The function that runs a command away from the caller's settings."""
    return run


@pytest.fixture(scope="session")
def pip() -> Callable[[Path], list[str]]:
    """The function that gives the start of a pip command for an environment's python."""
    return pip_of


@pytest.fixture(scope="session")
def environment(root: Path) -> Callable[..., Path]:
    """A function that makes an environment in a folder and gives its python."""
    return lambda folder, *wanted: make_environment(folder, root, *wanted)
