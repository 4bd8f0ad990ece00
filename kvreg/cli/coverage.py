"""`kvreg coverage`: what select says of every device, mode and head size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kvreg.cli import render
from kvreg.cli.once import Command
from kvreg.cli.output_file import OutputFile
from kvreg.core import asking, environment, registry
from kvreg.core.coverage import HEAD_SIZES, Cell, cells, counts, rows, summary
from kvreg.core.errors import UsageError, wrong
from kvreg.core.expectations import own
from kvreg.core.modes import Mode
from kvreg.core.near import choice
from kvreg.core.snapshot import Snapshot


@click.command(cls=Command)
@click.option("--platform", help="Only this platform's devices.")
@click.option("--mode", help="Only this KV quantization mode.")
@click.option("--head-size", "head_sizes", type=click.IntRange(1), multiple=True, help="Only this; may be repeated.")
@click.option("--html", type=OutputFile(), help="Write one page of HTML to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, schema 1.")
def coverage(
    platform: str | None, mode: str | None, head_sizes: Sequence[int], html: Path | None, as_json: bool
) -> None:
    """Show each device, mode and head size as measured, compiled, interpreted or refused.

    Every cell is the answer of select with interpreted evidence allowed. Devices of an arch that are alike share a
    row. A refusal is named by its code; --json and `kvreg select --explain` give its sentence.
    """
    modes = _modes(mode)
    sizes = tuple(dict.fromkeys(head_sizes)) or HEAD_SIZES
    found = everything(platform, modes, sizes)
    if html is not None:
        from kvreg.cli import coverage_pages

        coverage_pages.write(html, coverage_pages.html(found, modes, sizes))
    if as_json:
        render.document(document(found, modes, sizes))
    elif html is not None:
        render.line(f"wrote {html}")
    else:
        _show(found, modes, sizes)


def everything(platform: str | None, modes: Sequence[Mode], sizes: Sequence[int]) -> list[Cell]:
    """Return the cells of a platform's devices, of all devices where None. Raises UsageError for another word."""
    settings = environment.read()
    index = Snapshot(registry.backends(), settings.home, exceptions=own.path())
    devices = index.devices()
    known = tuple(dict.fromkeys(device.platform for device in devices))
    if platform is not None and platform not in known:
        message = wrong(
            "platform",
            required=f"one of {', '.join(known)}",
            found=repr(platform),
            remedy=choice(platform, known),
        )
        raise UsageError(message, candidates=known)
    asked = [device for device in devices if platform in (None, device.platform)]
    return list(cells(asked, modes, sizes, settings, index))


def document(found: Sequence[Cell], modes: Sequence[Mode], sizes: Sequence[int]) -> dict[str, Any]:
    """Return the JSON document; docs/coverage.md describes it."""
    return {
        "schema": 1,
        "modes": list(modes),
        "head_sizes": list(sizes),
        "counts": counts(found),
        "cells": [asdict(cell) for cell in found],
    }


def _modes(word: str | None) -> tuple[Mode, ...]:
    mode = asking.parse_mode(word)
    return tuple(Mode) if mode is None else (mode,)


def _show(found: Sequence[Cell], modes: Sequence[Mode], sizes: Sequence[int]) -> None:
    render.table(
        ("devices", "arch", *modes),
        [
            (" ".join(row.devices), row.arch, *(summary(row.labels[mode], sizes) for mode in modes))
            for row in rows(found, modes)
        ],
    )
    render.line()
    render.line(f"head sizes {' '.join(map(str, sizes))}")
    render.line(", ".join(f"{count} {status}" for status, count in counts(found).items()))
    refused = next((cell for cell in found if cell.code), None)
    if refused is not None:
        render.line()
        render.line(
            f"kvreg select --device {refused.device} --mode {refused.mode} --head-size {refused.head_size} --explain"
        )
