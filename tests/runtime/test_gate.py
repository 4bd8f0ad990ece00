"""Both backends under the gate, through the public calls."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.layouts import LayoutId
from kvreg.gate.run import run_attention, run_write
from kvreg.runtime.attention import write
from kvreg.testing import Batch, build

MODES = ("none", "int4_per_token_head")
LAYOUTS = ("planar.1", "inline.1")
SHORT = (1, 17, 64)


def judge(cache, batch: Batch, attend_batch, **keywords):
    """Write and attend under the gate; the report of each must be clean."""
    wrote = run_write(lambda: write(cache, batch.k, batch.v, batch.slots), batch, cache.view)
    assert wrote.ok, wrote.failures

    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        result = attend_batch(cache, batch, out=out, return_lse=lse is not None, **keywords)
        if lse is None:
            assert result is out
        else:
            assert result[0] is out
            lse.copy_(result[1])

    report = run_attention(call, batch, cache.view, repeats=1)
    assert report.ok, report.failures


@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_batch_is_right_in_every_layout(backend, mode, layout, kind, cache_for, attend_batch):
    batch = build(kind, head_size=96, contexts=SHORT, layout=LayoutId.parse(layout), inputs=("normal", "channel30"))
    judge(cache_for(backend, mode, batch), batch, attend_batch)
