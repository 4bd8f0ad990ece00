"""The type of an option that names the file an answer goes to."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kvreg.core import output_files


class OutputFile(click.Path):
    """Gives the path to write to; a name that nothing may be written to is an error before any work."""

    def __init__(self, *, makes_folder: bool = False) -> None:
        super().__init__(dir_okay=False)
        self._makes_folder = makes_folder

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the file that was named, behind a link. Raises UsageError, see core/output_files.py."""
        option = param.opts[0] if param is not None else "output"
        path = output_files.target(option, str(value))
        if not self._makes_folder:
            output_files.require_folder(option, path)
        return path
