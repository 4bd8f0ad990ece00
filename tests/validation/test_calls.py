"""How the gate launches a cell: which cuts there are, that they find a wrong one, and what is compiled beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from kvreg.core import resolve
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.runtime.launchers import load
from kvreg.validation import calls
from kvreg.validation.cells import OWN_FEATURES, PROFILES, Cell, work_list
from kvreg_cuda.variants import own

SMALL = replace(resolve.resolve("h200").device, compute_units=1)
"""An H200 of one multiprocessor: few enough programs for the interpreter."""
OWN = [each for each in own() if each.op is Op.DECODE]


def cell_of(variant: str, kind: str = "decode", **others: Any) -> Cell:
    mode = str(calls.variant_of(variant, "cuda").mode)
    shape = {"group": 4, "layout": "planar.2" if "int4" in mode else "planar.1", "dtype": "bf16", "page": 16}
    shape |= {"contexts": (1, 150, 17), "inputs": ("normal",), "seeds": (0,)}
    return Cell(variant, "decode", mode, 32, kind, kv_heads=1, **{**shape, **others})


def cuts_of(cell: Cell) -> list[calls.Cut]:
    batch = calls.batch_of(cell, "cpu")
    cache, _ = calls.filled(cell, batch, SMALL)
    return list(calls.attend_cuts(cell, batch, cache, calls.variant_of(cell.variant, "cuda"), SMALL))


def failures(cell: Cell) -> dict[str, list[str]]:
    batch = calls.batch_of(cell, "cpu")
    cache, reference = calls.filled(cell, batch, SMALL)
    cuts = calls.attend_cuts(cell, batch, cache, calls.variant_of(cell.variant, "cuda"), SMALL)
    return {cut.name: [str(each) for each in run_attention(cut.call, batch, cache, reference=reference).failures]
            for cut in cuts}  # fmt: skip


@pytest.mark.parametrize("variant", [str(each.id) for each in OWN])
def test_a_launcher_that_offers_equal_shares_is_launched_in_them(variant):
    assert {"shares", "few shares"} <= {cut.name for cut in cuts_of(cell_of(variant))}
    assert [cut.name for cut in cuts_of(cell_of(variant, dtype="fp16"))] == ["planned", "shares"]


@pytest.mark.parametrize(
    "cell", [cell_of("cuda-int4-decode@1", kind="mixed"), cell_of("triton-int4-decode@1")], ids=["rows", "launcher"]
)
def test_batches_of_several_rows_and_other_launchers_have_no_shares(cell):
    assert not [cut.name for cut in cuts_of(cell) if "shares" in cut.name]


def test_what_equal_shares_take_beside_causal_attention_is_tried_in_them():
    cells = work_list(OWN, (96,), PROFILES["device"])

    for features in OWN_FEATURES:
        tried = [cell for cell in cells if cell.features == features]
        assert {cell.variant for cell in tried} == {str(each.id) for each in OWN}
        assert "shares" in {cut.name for cut in cuts_of(cell_of(tried[0].variant, tried[0].kind, features=features))}


def test_a_join_that_believes_in_half_as_many_shares_is_found(monkeypatch):
    """By the shares alone: the batch is right as it is planned."""
    cell = cell_of("cuda-int8-decode@1", dtype="fp16", group=1, contexts=(70,))
    launcher = load(calls.variant_of(cell.variant, "cuda").launcher)
    right = type(launcher)._join

    def join(self, kernel, call, parts, *others):
        shared = kernel is self.join_shares
        right(self, kernel, call, (*parts[:-1], parts[-1] // 2) if shared else parts, *others)

    monkeypatch.setattr(type(launcher), "_join", join)
    found = failures(cell)

    assert found["planned"] == []
    assert found["shares"]


ASK = """
import json, sys
from dataclasses import replace
from types import SimpleNamespace
from kvreg.core import resolve
from kvreg.validation import calls, work
from kvreg.validation.cells import PROFILES, work_list
from kvreg.validation.run import Run
from kvreg_triton.cross.specializations import recording, target_of

card = resolve.resolve("h200").device
(variant,) = [each for each in calls.variants_of("cuda") if str(each.id) == sys.argv[1]]
cells = [cell for cell in work_list([variant], [96], PROFILES["device"]) if cell.thorough]
run = Run(SimpleNamespace(device=card), (variant,), tuple(cells), None, "")
tasks = {run.compiled_for(cell): cell for cell in reversed(cells)}


def recorded(cell, all_forms):
    batch = calls.batch_of(cell, "cpu")
    cache = batch.cache(variant.mode)
    lse = batch.q.new_empty(batch.q.shape[:2]).float()
    with recording(target_of(card)) as found:
        for cut in calls.attend_cuts(cell, batch, cache, variant, card, all_forms=all_forms):
            cut.call(batch.q.clone(), lse if cut.with_lse else None)
    return {each.digest: each.kernel for each in found}


before, launched = {}, {}
for cell in tasks.values():
    before |= recorded(work._small(cell, card), True)
for cell in cells:
    if cell.kind == "decode":
        # As many rows, sequences and splits, of which one alone has more than a token.
        contexts = (1,) * (cell.sequences - 1) + (max(cell.contexts),)
        launched |= recorded(replace(cell, contexts=contexts, inputs=("normal",), seeds=(0,)), False)
print(json.dumps({"missing": len({*launched} - {*before}), "kernels": sorted({*launched.values()}),
                  "named": sorted(name for name in variant.kernels if name.rpartition(":")[2].islower())}))
"""


def test_every_kernel_of_int4_decode_is_launched_and_each_form_of_it_compiled_before():
    """As many sequences share, and as wide groups take rows, as in the cell itself."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, "cuda-int4-decode@1"],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)

    assert found["kernels"] == found["named"]
    assert found["missing"] == 0
