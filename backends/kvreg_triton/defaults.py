"""Launch parameters by arch: what a platform tries in which order, and what a compilation for an arch chose of it.

`launch.json` in a platform's folder holds the choices, written by `kvreg validate --compile --write repo`:

    {"schema": 1, "archs": {"gfx1100": {"int4_per_token_head": {"decode": {"128": {"num_warps": 4, ...}}}}}}

An arch that is not in it has the first parameters of the platform's order. Torch-free: select prints them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvreg.core.devices import Device
from kvreg.core.errors import BadFile, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.shards import replace_file
from kvreg_triton import configs
from kvreg_triton.configs import padded

SCHEMA = 1
FILE = "launch.json"

Config = Mapping[str, int]
Candidates = Callable[[Mode, Op, Device, Request], Sequence[Config]]
"""What differs from the shared parameters, in the order in which it is tried; an empty mapping is those themselves."""

_SHARED: dict[Op, Callable[[Mode, Request], Config]] = {
    Op.WRITE: configs.write,
    Op.DECODE: configs.decode,
    Op.PREFILL: configs.prefill,
}
_USUAL_GROUP = 16
"""Widest group whose rows fit the least block of a matrix unit: what a decode block of 16 rows serves."""


def only_shared(mode: Mode, op: Op, device: Device, request: Request) -> Sequence[Config]:
    """Try nothing but the shared parameters."""
    return ({},)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The launch parameters of one platform."""

    candidates: Candidates = only_shared
    file: Path | None = None
    """Its launch.json; None where nothing is recorded."""

    def candidates_of(self, mode: Mode, op: Op, device: Device, request: Request) -> tuple[dict[str, int], ...]:
        """Return whole launch parameters in the order in which they are tried."""
        shared = _SHARED[op](mode, request)
        if request.group > _USUAL_GROUP and op is Op.DECODE:
            return (dict(shared),)  # the order is made for blocks of 16 rows
        whole = [_over(shared, changed, request) for changed in self.candidates(mode, op, device, request)]
        return tuple(each for index, each in enumerate(whole) if each not in whole[:index])

    def default(self, mode: Mode, op: Op, device: Device, request: Request) -> dict[str, int]:
        """Return what was chosen for the device's arch, else what is tried first."""
        chosen = None if self.file is None else _chosen(self.file, device.arch, mode, op, request.head_size)
        if chosen is None or (request.group > _USUAL_GROUP and op is Op.DECODE):
            return self.candidates_of(mode, op, device, request)[0]
        return _over(_SHARED[op](mode, request), chosen, request)


def _over(shared: Config, changed: Config, request: Request) -> dict[str, int]:
    """Return `shared` with what changed; a block holds all rows of a group, however few were chosen."""
    whole = {**shared, **changed}
    if "tile" in whole:
        whole["rows"] = max(whole["rows"], padded(request.group))
    return whole


def _chosen(file: Path, arch: str, mode: Mode, op: Op, head_size: int) -> Config | None:
    """Return the choice for a head size, else for the largest recorded one of the same padded width."""
    sizes = read(file).get(arch, {}).get(mode.value, {}).get(op.value, {})
    alike = [size for size in map(int, sizes) if padded(size) == padded(head_size)]
    if not alike:
        return None
    return dict(sizes[str(head_size if head_size in alike else max(alike))])


@cache
def read(file: Path) -> Mapping[str, Any]:
    """Return arch -> mode -> op -> head size -> parameters; empty where there is no file. Raises BadFile."""
    try:
        document = json.loads(file.read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']}")
        archs: Mapping[str, Any] = document["archs"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "restore it, or write it again with `kvreg validate --compile --write repo`"
        required = f"launch parameters of schema {SCHEMA}"
        raise BadFile(wrong(f"{file}", required=required, found=str(error), remedy=remedy)) from None
    return archs


def record(file: Path, choices: Mapping[tuple[str, Mode, Op, int], Config]) -> None:
    """Write choices, by (arch, mode, op, head size), into `file` beside those that it holds of others."""
    archs = json.loads(json.dumps(read(file)))
    for (arch, mode, op, head_size), config in choices.items():
        sizes = archs.setdefault(arch, {}).setdefault(mode.value, {}).setdefault(op.value, {})
        sizes[str(head_size)] = dict(config)
    ordered = {
        arch: {
            mode: {op: dict(sorted(sizes.items(), key=lambda item: int(item[0]))) for op, sizes in sorted(ops.items())}
            for mode, ops in sorted(modes.items())
        }
        for arch, modes in sorted(archs.items())
    }
    replace_file(file, f"{json.dumps({'schema': SCHEMA, 'archs': ordered}, indent=1)}\n".encode())
    read.cache_clear()
