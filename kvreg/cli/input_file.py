"""The type of an option that names a file to be read whole by a library: it must be there, and be a file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kvreg.core.input_files import no_file


class InputFile(click.Path):
    """Gives the path to read; a folder, a pipe or a device is a usage error."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, exists=True, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the file that was named."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if (found := no_file(path)) is not None:
            self.fail(f"{path}: required a file, found {found}", param, ctx)
        return path
