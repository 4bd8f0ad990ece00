"""The types of options and arguments that name what is read.

An empty text, such as a script's variable that nobody has set, is no path; a file that a library reads whole must be
there and be a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from kvreg.core.input_files import no_file


class NamedPath(click.Path):
    """Gives the path that was named; an empty text is a usage error, since a Path makes the current folder of it."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, in the type that was asked for."""
        if not os.fspath(value):
            self.fail("required a path, found an empty text", param, ctx)
        return super().convert(value, param, ctx)


class InputFile(NamedPath):
    """Gives the path to read; a folder, a pipe or a device is a usage error."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, exists=True, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the file that was named."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if (found := no_file(path)) is not None:
            self.fail(f"{path}: required a file, found {found}", param, ctx)
        return path
