"""The oracle and the gate give on a card what they give on the host."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.gate import reference_of, run_attention, run_write
from kvreg.gate.specimen import Specimen
from kvreg.oracle import store
from kvreg.testing import KINDS, Kind, build

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def card() -> str:
    for kind in ("cuda", "xpu"):
        if getattr(torch, kind).is_available():
            return kind
    pytest.skip("needs a card that torch sees")


EVERY = ("window", "softcap", "sinks", "alibi", "prefix_ranges", "per_sequence_causal", "multi_query_split")
FEATURES = pytest.mark.parametrize("features", [("causal",), EVERY], ids=["causal", "every"])


@FEATURES
@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("mode", list(Mode), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_caches_and_references_on_a_card_are_those_of_the_host(
    card: str, kind: Kind, mode: Mode, fp8: str, features: tuple[str, ...]
) -> None:
    host = build(kind, head_size=96, contexts=(1, 17, 64, 300), features=features)
    batch = host.to(card)
    cache, due = batch.filled(mode, fp8=fp8), host.filled(mode, fp8=fp8)

    assert torch.equal(cache.storage.cpu(), due.storage)
    found, right = reference_of(batch, cache), reference_of(host, due)
    torch.testing.assert_close(found.out.cpu(), right.out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.lse.cpu(), right.lse, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.spread.cpu(), right.spread, rtol=1e-10, atol=1e-12)


@FEATURES
@pytest.mark.parametrize("mode", list(Mode), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_implementation_is_green_on_a_card_and_a_fault_is_red(
    card: str, kind: Kind, mode: Mode, features: tuple[str, ...]
) -> None:
    batch = build(kind, head_size=96, contexts=(1, 17, 64, 1024), device=card, features=features)
    cache = batch.cache(mode)
    written = run_write(lambda: Specimen().write(cache, batch.k, batch.v, batch.slots), batch, cache)
    cache.fill(0xFF)
    store(cache, batch.k, batch.v, batch.slots)

    def attend(fault: str | None, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        args = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, batch.scale)
        Specimen(fault).attend(*args, out, lse, batch.features)

    assert written.ok, written.failures
    # Products of float32 matrices may be tf32 on a card by the caller's choice; a right implementation has them exact.
    torch.backends.cuda.matmul.allow_tf32 = False
    right = run_attention(lambda out, lse: attend(None, out, lse), batch, cache)
    assert right.ok, right.failures
    assert "rel_error" in run_attention(lambda out, lse: attend("output_scaled", out, lse), batch, cache).checks
