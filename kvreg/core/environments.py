"""Separate Python environments under KVREG_HOME/toolchains, for compilers that cannot lie beside kvreg's own packages.

KVREG_HOME/toolchains/xpu/                    the environment; a link where it was made elsewhere
KVREG_HOME/toolchains/xpu/kvreg.json          what is in it, written last: without it an installation was cut off
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = "toolchains"
RECORD = "kvreg.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """One environment: a distribution pinned exactly, and where it can be."""

    name: str
    """Word of the command line and name of the folder."""
    distribution: str
    version: str
    pythons: tuple[tuple[int, int], ...]
    """Versions of Python that it has wheels for and kvreg runs on."""
    system: str
    machine: str
    """As platform.system() and platform.machine() say."""
    size_mb: int
    """What is downloaded."""
    probe: str
    """Program that prints the compiler's version where the environment is sound."""

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True)
class Environment:
    """A complete environment."""

    folder: Path
    version: str
    """Of the distribution."""
    python: str
    """Version of its Python."""
    seconds: float
    """How long the installation took."""

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return interpreter(self.folder)


def place(home: Path, name: str) -> Path:
    """Return where the environment of a recipe's name lies."""
    return home / FOLDER / name


def interpreter(folder: Path) -> Path:
    """Return the Python of an environment's folder."""
    return folder / "bin" / "python"


def find(folder: Path, recipe: Recipe) -> Environment | None:
    """Return the environment of a folder; None where there is none, an unfinished one or another release."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        if record["schema"] != SCHEMA or record["requirement"] != recipe.requirement:
            return None
        found = Environment(folder.resolve(), recipe.version, str(record["python"]), float(record["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if found.interpreter.exists() else None


def is_unfinished(folder: Path) -> bool:
    """Return whether an installation into `folder` was cut off."""
    return partial(folder).exists()


def partial(folder: Path) -> Path:
    """Return where an environment is made before it takes its place in one step."""
    return folder.with_name(f"{folder.name}.partial")
