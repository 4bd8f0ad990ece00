"""A plug-in whose decode variant does with each `kind` what a config may do to a tuner.

It runs on the device cpu. `plant` lays it down as an installed distribution, so that every process finds it.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from kvreg.core.backends import FolderBackend
from kvreg.core.formats import default_format
from kvreg.core.layouts import PLANAR
from kvreg.core.modes import Mode
from kvreg.core.requests import DTYPES, Op
from kvreg.core.variants import Constraints, Variant, VariantId

RIGHT, FASTER, SKIPS_LAST, FIRST_HALF, SECOND_HALF, RAISES, COMPILES_FOR_EVER, ABORTS, HANGS = range(9)
KINDS = tuple(int(word) for word in os.environ.get("PLANTED_KINDS", "0,1").split(","))
SLEEP_S = {RIGHT: 0.004, FASTER: 0.002}
LONGEST_FIRST = 17
"""Tokens of the longest sequence of a first launch; the gate's are longer."""


class Launcher:
    def splits(self, rows, kv_heads, group, max_context, compute_units, config):
        return 1

    def chunk(self, config):
        return 0

    def __call__(self, call, config):
        from kvreg_cpu.attend import attend_none

        kind = config["kind"]
        first = int(call.seq_lens.max()) <= LONGEST_FIRST
        if kind == RAISES:
            raise RuntimeError("ptxas fatal: planted")
        if kind == ABORTS and not first:
            os.abort()
        while (kind == COMPILES_FOR_EVER and first) or (kind == HANGS and not first):
            time.sleep(0.01)
        if kind == SKIPS_LAST:
            shorter = (call.seq_lens - 16).clamp(min=1)
            return attend_none(replace(call, seq_lens=shorter), {"scores": 1 << 20})
        if kind in (FIRST_HALF, SECOND_HALF):
            whole = call.out.clone()
            attend_none(replace(call, out=whole), {"scores": 1 << 20})
            half = call.out.shape[1] // 2
            heads = slice(None, half) if kind == FIRST_HALF else slice(half, None)
            call.out[:, heads] = whole[:, heads]
            return None
        if int(call.seq_lens.max()) != 256:  # the bucket's own work takes as long as its config says, and no longer
            return attend_none(call, {"scores": 1 << 20})
        time.sleep(SLEEP_S.get(kind, 0.0))
        return None


LAUNCHER = Launcher()


class Planted(FolderBackend):
    name = "planted"
    platform = "cpu"

    def devices(self):
        return ()

    def variants(self):
        return (
            Variant(
                id=VariantId("planted-none-decode", 1),
                op=Op.DECODE,
                mode=Mode.NONE,
                family="planted",
                accuracy="exact",
                launcher="planted:LAUNCHER",
                kernels=("planted:Launcher",),
                format=lambda device, head_size: default_format(Mode.NONE, device, head_size, PLANAR, "bf16"),
                default_config=lambda device, request: {"kind": RIGHT},
                constraints=Constraints(dtypes=DTYPES),
                matrix_instruction=False,
            ),
        )

    def space(self, variant, device, request):
        return {"kind": KINDS}


BACKEND = Planted(Path(__file__).parent)


def plant(folder: Path) -> Path:
    """Lay this file down as a distribution with an entry point and return the folder for PYTHONPATH."""
    info = folder / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvreg.backends]\nplanted = planted:BACKEND\n")
    (folder / "planted.py").write_text(Path(__file__).read_text())
    (folder / "devices.yaml").write_text("schema: 1\nplatform: cpu\ndevices: []\n")
    return folder
