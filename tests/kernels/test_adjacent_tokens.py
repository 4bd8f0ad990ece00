"""V whose tokens are adjacent (planar.2): loads of whole groups of 16 tokens, whatever stands in them."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.layouts import TOKEN_MINOR
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.gate import run_attention
from kvreg.testing import build

INT4 = Mode.INT4_PER_TOKEN_HEAD
EDGES = (15, 16, 17, 49)
"""Contexts around the ends of groups of 16 tokens and of pages of 16 and 48."""
DIRT = (0xFF, 0x7F, 0x00)
"""Bytes that nobody wrote: scales of nan, of 3.4e38 and of 0, each with codes that would show."""


@pytest.mark.parametrize(("op", "page", "features", "cut"), [
    (Op.DECODE, 16, ("causal",), {"tile": 32}),
    (Op.DECODE, 48, ("window", "prefix_ranges"), {"tile": 16, "splits": 2}),
    (Op.PREFILL, 48, ("window",), {"tile": 32}),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_what_stands_behind_a_sequences_last_token_never_shows(op, page, features, cut, attention):
    """Tokens of a group that lie behind the end, or outside of the window, weigh exactly nothing."""
    batch = build(
        "decode", head_size=32, group=1, kv_heads=1, page=page, contexts=EDGES, inputs=("normal",), features=features,
        window=19, dtype="fp32", layout=TOKEN_MINOR,
    )  # fmt: skip
    found = []
    for dirt in DIRT:
        cache = batch.filled(INT4, fill=dirt)
        out = torch.full_like(batch.q, float("nan"))
        attention(INT4, op, batch, cache, **cut)(out, None)
        found.append(out)

    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    report = run_attention(attention(INT4, op, batch, cache, **cut), batch, cache)
    assert report.ok, report.failures
