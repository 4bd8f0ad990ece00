"""Making a compiler's environment: beside its place first, and into it in one step once it answers.

An installation that is cut off leaves `<name>.partial`; the next one goes on with it, installs the distribution whole
(pip still has what it had downloaded) and asks it for an answer before it counts. Nothing of kvreg is installed there:
the child that compiles finds its packages by links (kvreg_triton.cross.compilations), so that a change to a kernel
needs no new environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvreg.core import environments
from kvreg.core.environments import Environment, Recipe
from kvreg.core.errors import ToolchainUnavailable, UsageError, wrong
from kvreg.core.shards import replace_file

INSTALL_TIMEOUT_S = 1800.0
PROBE_TIMEOUT_S = 120.0

_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable"
    r"|Connection refused|ProxyError|ConnectTimeout|ReadTimeout"
)
_NO_VENV = re.compile(r"ensurepip is not available|No module named (?:venv|ensurepip)")

Say = Callable[[str], None]


def install(recipe: Recipe, folder: Path, python: Path | None = None, say: Say = lambda line: None) -> Environment:
    """Make the environment of `recipe` in `folder` and return it; a sound one that is there already is kept.

    `python` makes it; None takes this one, else the first of the recipe's on PATH. Raises UsageError for a Python that
    the recipe has no wheel for, ToolchainUnavailable where it cannot be made.
    """
    maker = _maker(recipe, python)
    # Before the lock, which lies beside the folder: the root of a file system has no place beside it.
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise UsageError(
            wrong(str(folder), required="an empty place or an environment", found="something else",
                  remedy="name another --folder")
        )  # fmt: skip
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        there = environments.find(folder, recipe)
        if there is not None and probe(recipe, there.folder) is not None:
            say(f"{recipe.requirement} is in {there.folder} and answers")
            return there
        unfinished = environments.partial(folder)
        if unfinished.exists():
            say(f"an installation was cut off: it goes on in {unfinished}")
        began = time.monotonic()
        say(f"{recipe.requirement}: {recipe.size_mb} MB are downloaded unless pip has them")
        _make(recipe, maker, unfinished)
        version = probe(recipe, unfinished)
        if version is None:
            raise _unavailable(
                recipe,
                "a compiler that can be imported",
                "none",
                f"look into {unfinished}, then run the command again",
            )
        return _settle(recipe, unfinished, folder, time.monotonic() - began)


def probe(recipe: Recipe, folder: Path) -> str | None:
    """Return the version that the compiler in `folder` says it has; None where it does not answer."""
    python = environments.interpreter(folder)
    try:
        done = subprocess.run(
            [python, "-P", "-c", recipe.probe],
            env=_plain_variables(),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[-1] if done.returncode == 0 and lines else None


def _maker(recipe: Recipe, python: Path | None) -> Path:
    """Return the Python that makes the environment."""
    here = (platform.system(), platform.machine())
    if here != (recipe.system, recipe.machine):
        raise _unavailable(
            recipe,
            f"{recipe.system} on {recipe.machine}, the only one with a wheel",
            " on ".join(here),
            f"install it on such a machine; `kvreg select` answers for {recipe.name} everywhere",
        )
    if python is not None:
        return _fit(recipe, python)
    if sys.version_info[:2] in recipe.pythons:
        return Path(sys.executable)
    for major, minor in recipe.pythons:
        found = shutil.which(f"python{major}.{minor}")
        if found:
            return Path(found)
    raise _no_python(recipe, platform.python_version())


def _fit(recipe: Recipe, python: Path) -> Path:
    command: list[str | Path] = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
        found = tuple(int(part) for part in done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            wrong("--python", required="a Python that answers", found=f"{python} ({error})", remedy="name another")
        ) from None
    if found not in recipe.pythons:
        raise _no_python(recipe, ".".join(map(str, found)))
    return python


def _no_python(recipe: Recipe, found: str) -> UsageError:
    known = " or ".join(f"{major}.{minor}" for major, minor in recipe.pythons)
    return UsageError(
        wrong(
            f"toolchain {recipe.name}",
            required=f"Python {known}, for which {recipe.requirement} has a wheel",
            found=f"Python {found}",
            remedy="name one with --python PATH",
        )
    )


def _make(recipe: Recipe, maker: Path, folder: Path) -> None:
    log = folder.with_name(f"{folder.name}.log")
    pip: tuple[str | Path, ...] = (
        environments.interpreter(folder),
        "-m",
        "pip",
        "--no-input",
        "--disable-pip-version-check",
    )
    if not _answers([*pip, "--version"]):
        shutil.rmtree(folder, ignore_errors=True)
        _run(recipe, [maker, "-m", "venv", folder], log)
    # Forced: of a distribution that was cut off while it was unpacked, pip may believe that it is there.
    _run(recipe, [*pip, "install", "--force-reinstall", recipe.requirement], log)
    log.unlink(missing_ok=True)


def _answers(command: Sequence[str | Path]) -> bool:
    try:
        done = subprocess.run(
            command, env=_plain_variables(), capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(recipe: Recipe, command: Sequence[str | Path], log: Path) -> None:
    """Run a command whose output goes to `log`, which stays where it failed."""
    with open(log, "wb") as file:
        try:
            done = subprocess.run(
                command,
                env=_plain_variables(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found = f"still running after {INSTALL_TIMEOUT_S:g} s"
            raise _unavailable(
                recipe, "an installation that ends", found, "run it again: pip keeps downloads"
            ) from None
        except OSError as error:
            raise _unavailable(recipe, f"{command[0]} to run", str(error), "name another --python") from None
    if done.returncode == 0:
        return
    text = log.read_text(encoding="utf-8", errors="replace")
    if _NO_VENV.search(text):
        raise _unavailable(
            recipe, "Python's venv and ensurepip", "a Python without them", "install the package python3-venv"
        )
    if _NO_NETWORK.search(text):
        raise _unavailable(
            recipe, "a package index that answers", "no connection", "run it again where there is a network"
        )
    raise _unavailable(
        recipe, f"pip to install {recipe.requirement}", _last_error(text), f"{log} has all that it said"
    )


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "silence")


def _settle(recipe: Recipe, made: Path, folder: Path, seconds: float) -> Environment:
    """Record what `made` holds and put it in its place; what was there before goes only then."""
    version = subprocess.run(
        [environments.interpreter(made), "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PROBE_TIMEOUT_S,
    ).stdout.strip()
    record = {
        "schema": environments.SCHEMA,
        "requirement": recipe.requirement,
        "python": version,
        "seconds": round(seconds, 1),
    }
    replace_file(made / environments.RECORD, json.dumps(record, indent=1).encode())
    before = folder.with_name(f"{folder.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        os.rename(folder, before)
    os.rename(made, folder)
    shutil.rmtree(before, ignore_errors=True)
    found = environments.find(folder, recipe)
    assert found is not None, folder
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second installation of the same folder out; the lock goes with the process."""
    with open(folder.with_name(f".{folder.name}.lock"), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                wrong(str(folder), required="one installation at a time", found="another one runs",
                      remedy="wait for it")
            ) from None  # fmt: skip
        yield


def link(folder: Path, place: Path) -> None:
    """Let `place` lead to an environment that was made elsewhere."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        raise UsageError(
            wrong(str(place), required="no environment but the one in --folder", found="another one",
                  remedy="remove it, or install without --folder")
        )  # fmt: skip
    place.symlink_to(folder.resolve(), target_is_directory=True)


def _plain_variables() -> dict[str, str]:
    """Return the environment without what would let another environment's packages in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _unavailable(recipe: Recipe, required: str, found: str, remedy: str) -> ToolchainUnavailable:
    return ToolchainUnavailable(wrong(f"toolchain {recipe.name}", required=required, found=found, remedy=remedy))
