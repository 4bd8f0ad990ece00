"""The command line of `ci/gpu`."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kvreg.core.devices import Device, folder_name
from kvreg.core.errors import UsageError, wrong
from kvreg.validation import archive
from kvreg.validation.gpu.asked import RACES, WORKLOAD, Options
from kvreg.validation.gpu.stages import EXTRA, STAGES, USUAL

PLACES = ("--out", "--work", "--resume")
"""Options that name folders of the machine."""


def default_work(device: Device) -> Path:
    """Return the work folder where none is named: one for each device, so that no results of two are mixed."""
    return Path("gpu-results") / f"work-{folder_name(device.key)}"


def parse(arguments: Sequence[str]) -> tuple[Options, Path | None, Path, Path | None]:
    """Return (options, work folder if one is named, archive, what to resume from); UsageError for a wrong stage."""
    parser = _Parser(prog="ci/gpu", description="Run everything that needs a card; leave one archive.")
    parser.add_argument("--device", help="device to validate (default: KVREG_DEVICE, else the card)")
    parser.add_argument("--interpreter", action="store_true", help="take Triton's interpreter instead of a card")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to try the path")
    parser.add_argument(
        "--stages", default=",".join(USUAL), help=f"comma-separated (default: all but {', '.join(EXTRA)})"
    )
    parser.add_argument("--head-size", type=int, action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--only", action="append", default=[], help="validate only this variant; may be repeated")
    parser.add_argument("--variant", action="append", default=[], help="tune, space: only this one; may be repeated")
    parser.add_argument(
        "--workload",
        action="append",
        default=[],
        help=f"tune, space: bench, a preset, a bucket or a YAML file; may be repeated (default: {WORKLOAD})",
    )
    parser.add_argument("--races", type=_count, default=RACES, help="tune: races of each bucket")
    parser.add_argument("--limit-s", type=_seconds, help="stop cleanly before so many seconds have passed")
    parser.add_argument("--resume", type=Path, help="archive or folder of an earlier call to go on from")
    parser.add_argument("--peer", type=Path, help="folder of vLLM's five kernel files, for the interchange")
    parser.add_argument("--processes", type=_count, help="compiling processes (default: the cores)")
    parser.add_argument("--write", choices=("archive", "repo"), default="archive", help="where traces go")
    parser.add_argument("--out", type=Path, help="folder of the archive (default: $OUT, else gpu-results)")
    parser.add_argument(
        "--work", type=Path, help="folder of the journal and traces (default: gpu-results/work-DEVICE)"
    )
    asked = parser.parse_args(arguments)
    stages = _stages(asked.stages)
    if asked.variant and not {"tune", "space"} & set(stages):
        message = wrong("--variant", required="stage tune or space", found=asked.stages, remedy="name one in --stages")
        raise UsageError(message)
    if asked.peer is not None and not asked.peer.is_dir():
        message = wrong("--peer", required="a folder", found=str(asked.peer), remedy="name that of vLLM's kernels")
        raise UsageError(message)
    if asked.resume is not None and not asked.resume.exists():
        required = f"{archive.NAME} of an earlier run, or its folder"
        remedy = "name the folder that an earlier run has left"
        raise UsageError(wrong("--resume", required=required, found=f"no {asked.resume}", remedy=remedy))
    options = Options(
        device=asked.device,
        interpreter=asked.interpreter,
        smoke=asked.smoke,
        stages=stages,
        head_sizes=tuple(asked.head_size),
        only=tuple(asked.only),
        tuned=tuple(asked.variant),
        workloads=tuple(dict.fromkeys(asked.workload)) or (WORKLOAD,),
        races=asked.races,
        limit_s=asked.limit_s,
        peer=asked.peer,
        processes=asked.processes,
        write=asked.write,
        command=shlex.join(["ci/gpu", *_without_places(arguments)]),
    )
    out = asked.out or Path(os.environ.get("OUT") or "gpu-results")
    return options, asked.work, out / archive.NAME, asked.resume


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with an argument, as every command of kvreg does."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(f"{message}; `ci/gpu --help` lists the options")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"required a number of seconds above 0, found {text!r}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"required at least 1, found {text!r}")
    return value


def require_writable(name: str, folder: Path) -> None:
    """Make the folder and a file in it, before an hour of work finds out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = wrong(name, required="a folder to write to", found=str(error), remedy="name another one")
        raise UsageError(message) from None


def _stages(text: str) -> tuple[str, ...]:
    stages = tuple(word for word in text.split(",") if word)
    for word in stages or ("",):
        if word not in STAGES:
            raise UsageError(
                wrong("--stages", required=", ".join(STAGES), found=repr(word), remedy="take some of these")
            )
    return stages


def _without_places(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the folders that results go to and come from: those are the machine's own."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.split("=")[0] in PLACES:
            skip = "=" not in argument
        else:
            kept.append(argument)
    return kept
