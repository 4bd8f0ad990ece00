"""Attention features of the fp64 reference against their rules written for one query row and one key at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.gate import reference_of
from kvreg.oracle import PlainRows, Reference, attention
from kvreg.testing import build

LENGTHS = [17, 0, 1, 33, 5, 40]
QUERIES = [5, 2, 1, 33, 0, 9]
HEADS, GROUP, HEAD = 2, 3, 24
CU_Q = [sum(QUERIES[:i]) for i in range(len(QUERIES) + 1)]
RANGES = [
    [[0, 0], [0, 0]],
    [[0, 5], [0, 0]],
    [[0, 1], [5, 2]],
    [[4, 12], [10, 33]],
    [[0, 5], [0, 0]],
    [[2, 38], [39, 60]],
]


def by_pairs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool | list[bool] = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    prefix_ranges: torch.Tensor | None = None,
) -> Reference:
    """One score at a time on Python floats, as the rules of a call read."""
    out = torch.zeros((len(q), HEADS * GROUP, HEAD), dtype=torch.float64)
    lse = torch.full((len(q), HEADS * GROUP), -math.inf, dtype=torch.float64)
    spread = torch.zeros((len(q), HEADS * GROUP), dtype=torch.float64)
    for h in range(HEADS * GROUP):
        sink = -math.inf if sinks is None else float(sinks[h])
        lse[:, h] = sink
        for s, (length, queries) in enumerate(zip(LENGTHS, QUERIES, strict=True)):
            start = sum(LENGTHS[:s])
            is_causal = causal[s] if isinstance(causal, list) else causal
            for i in range(queries):
                p = length - queries + i
                keys, scores = [], []
                for t in range(length):
                    seen = t <= p if is_causal else True
                    if window is not None:
                        seen = seen and p - t < window and (is_causal or t - p < window)
                    for begin, end in [] if prefix_ranges is None else prefix_ranges[s].tolist():
                        seen = seen or (begin <= p < end and begin <= t < end)
                    if not seen:
                        continue
                    x = float(q[CU_Q[s] + i, h].double() @ k[start + t, h // GROUP].double()) * scale
                    if softcap is not None:
                        x = softcap * math.tanh(x / softcap)
                    if alibi is not None:
                        x += float(alibi[h]) * (t - p)
                    keys.append(start + t)
                    scores.append(x)
                top = max([*scores, sink])
                if not keys:
                    continue
                weights = [math.exp(x - top) for x in scores]
                total = sum(weights) + (math.exp(sink - top) if sinks is not None else 0.0)
                lse[CU_Q[s] + i, h] = top + math.log(total)
                share = torch.tensor(weights, dtype=torch.float64) / total
                values = v[keys, h // GROUP].double()
                out[CU_Q[s] + i, h] = share @ values
                spread[CU_Q[s] + i, h] = math.sqrt(float((share**2 * (values**2).sum(1)).sum()))
    return Reference(out, lse, spread)


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    q = torch.randn((CU_Q[-1] + 2, HEADS * GROUP, HEAD), generator=generator)
    k, v = torch.randn((2, sum(LENGTHS), HEADS, HEAD), generator=generator)
    return q, k, v


MASKINGS: dict[str, Any] = {"causal": True, "full": False, "by_sequence": [True, False, False, True, False, False]}
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "window1": {"window": 1},
    "window5": {"window": 5},
    "window100": {"window": 100},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": torch.randn(HEADS * GROUP, generator=torch.Generator().manual_seed(5))},
    "alibi": {"alibi": 2.0 ** -torch.arange(1, HEADS * GROUP + 1).float()},
    "ranges": {"prefix_ranges": torch.tensor(RANGES, dtype=torch.int32)},
}
ASKED["ranges+window"] = ASKED["ranges"] | ASKED["window5"]
ASKED["softcap+alibi"] = ASKED["softcap"] | ASKED["alibi"]
ASKED["all"] = ASKED["ranges+window"] | ASKED["softcap+alibi"] | ASKED["sinks"]


@pytest.mark.parametrize("budget", [None, 20_000], ids=["whole", "cut"])
@pytest.mark.parametrize("asked", list(ASKED))
@pytest.mark.parametrize("masking", list(MASKINGS))
def test_features_are_what_their_rules_say_of_each_pair(masking: str, asked: str, budget: int | None) -> None:
    q, k, v = drawn()
    rows = PlainRows(k, v, torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS))]))
    causal = MASKINGS[masking]

    found = attention(q, rows, LENGTHS, CU_Q, scale=0.3, causal=causal, budget=budget, **ASKED[asked])

    due = by_pairs(q, k, v, 0.3, causal, **ASKED[asked])
    torch.testing.assert_close(found.out, due.out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.lse, due.lse, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.spread, due.spread, rtol=1e-10, atol=1e-12)


def test_causality_by_sequence_may_be_a_tensor() -> None:
    q, k, v = drawn()
    rows = PlainRows(k, v, torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS))]))
    causal = MASKINGS["by_sequence"]

    a, b = (attention(q, rows, LENGTHS, CU_Q, scale=1.0, causal=x) for x in (causal, torch.tensor(causal)))

    assert torch.equal(a.out, b.out)


def test_a_row_that_sees_no_key_has_zeros_and_the_sink_as_its_lse() -> None:
    q, k, v = drawn()
    rows = PlainRows(k, v, torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS))]))
    sinks = ASKED["sinks"]["sinks"]

    found = attention(q, rows, LENGTHS, CU_Q, scale=1.0, sinks=sinks)

    keyless = [CU_Q[1], CU_Q[1] + 1, CU_Q[-1], CU_Q[-1] + 1]
    assert found.out[keyless].abs().max() == 0
    assert torch.equal(found.lse[keyless], sinks.double().expand(4, -1))


def test_a_sink_takes_weight_and_adds_no_value() -> None:
    q, k, v = torch.zeros((1, 1, 8)), torch.zeros((3, 1, 8)), torch.ones((3, 1, 8))

    found = attention(q, PlainRows(k, v, torch.tensor([0])), [3], [0, 1], scale=1.0, sinks=torch.zeros(1))

    torch.testing.assert_close(found.out, torch.full((1, 1, 8), 0.75, dtype=torch.float64))
    assert found.lse.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["k", "v"])
def test_what_lies_outside_a_window_reaches_no_row(side: str, bad: float) -> None:
    q, k, v = torch.randn((2, 2, 32)), torch.randn((60, 1, 32)), torch.randn((60, 1, 32))
    rows = PlainRows(k.clone(), v.clone(), torch.tensor([0]))
    getattr(rows, side)[:54] = bad  # the queries stand at 58 and 59 and see five keys each

    found = attention(q, rows, [60], [0, 2], scale=0.2, window=5, softcap=5.0, alibi=torch.tensor([0.5, 0.25]))

    clean = PlainRows(k, v, torch.tensor([0]))
    due = attention(q, clean, [60], [0, 2], scale=0.2, window=5, softcap=5.0, alibi=torch.tensor([0.5, 0.25]))
    assert torch.equal(found.out, due.out)


def test_the_reference_of_a_batch_is_that_of_its_features() -> None:
    words = ("window", "softcap", "sinks", "alibi", "prefix_ranges")
    plain = build("prefill", head_size=40, contexts=(17, 80), inputs=("normal",))
    asked = build("prefill", head_size=40, contexts=(17, 80), inputs=("normal",), features=words)
    cache = plain.filled(Mode.INT8_PER_TOKEN_HEAD)

    found, without = reference_of(asked, cache), reference_of(plain, cache)

    assert torch.equal(asked.q, plain.q)
    assert not torch.allclose(found.out, without.out, rtol=1e-2)
