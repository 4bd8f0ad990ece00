"""What each feature means, on both backends: against a definition in plain loops, and in cases known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvreg.core.modes import Mode
from kvreg.runtime import features
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.launchers import AttendCall, Features, SplitPlan, load
from kvreg.runtime.pages import dequantize
from kvreg.runtime.plan import plan
from kvreg.testing import Batch, build

MODES = tuple(Mode)
FAMILIES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
"""One mode of each Triton kernel: the interpreter is slow, and tests/kernels has the other modes."""
BOTH = pytest.mark.parametrize(
    ("backend", "mode"),
    [*(("cpu", mode) for mode in MODES), *(("triton", mode) for mode in FAMILIES)],
    indirect=["backend"],
)
EVERY = (
    "causal", "non_causal", "per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges",
)  # fmt: skip
LENGTHS, QUERIES = (9, 21, 4, 0, 33), (1, 3, 6, 2, 5)
"""Tokens and query rows of each sequence: the third has rows before its first token, the fourth is empty."""
HEADS, GROUP, WIDTH, PAGE = 2, 3, 40, 16


class Filled:
    """A cache with random rows, and the call over it; on the cpu a last query row belongs to no sequence.

    The Triton kernels say nothing of such a row behind a sequence that is not empty.
    """

    def __init__(self, select: Callable[..., Any], backend: str, mode: Mode) -> None:
        generator = torch.Generator().manual_seed(3)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(torch.bfloat16)

        selection = select(
            backend, mode, WIDTH, q_heads=HEADS * GROUP, kv_heads=HEADS, page=PAGE, features=EVERY, tile=16
        )
        self.cache = KVCache.allocate(selection, 12, device="cpu")
        self.cache.buffer.fill_(0xFF)
        self.table = torch.tensor([[5, 0, 0], [7, 2, 0], [3, 0, 0], [0, 0, 0], [1, 9, 4]], dtype=torch.int32)
        self.slots = [
            [int(self.table[s, t // PAGE]) * PAGE + t % PAGE for t in range(length)]
            for s, length in enumerate(LENGTHS)
        ]
        slots = torch.tensor([slot for each in self.slots for slot in each])
        self.k, self.v = normal(len(slots), HEADS, WIDTH), normal(len(slots), HEADS, WIDTH)
        write(self.cache, self.k, self.v, slots)
        self.q = normal(sum(QUERIES) + int(backend == "cpu"), HEADS * GROUP, WIDTH)
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        self.cu_q = torch.tensor([0, *QUERIES]).cumsum(0).int()

    def attend(self, **asked: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = plan(self.cache, self.cu_q, self.lengths, max_context=max(LENGTHS))
        out = torch.full(self.q.shape, torch.nan, dtype=torch.bfloat16)
        arguments = (self.q, self.cache, self.table, self.lengths, self.cu_q, made)
        return attend(*arguments, out=out, return_lse=True, **asked)

    def rows_of(self, sequence: int) -> slice:
        return slice(int(self.cu_q[sequence]), int(self.cu_q[sequence + 1]))


@pytest.fixture
def filled(select) -> Callable[..., Filled]:
    return lambda backend="cpu", mode=Mode.NONE: Filled(select, backend, mode)


def defined(
    filled: Filled,
    *,
    causal: Any = True,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    prefix_ranges: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (out, lse) one row, head and key at a time, as kvreg.runtime.launchers.Features words it."""
    out = torch.zeros(filled.q.shape, dtype=torch.float64)
    lse = torch.full(filled.q.shape[:2], -torch.inf, dtype=torch.float64)
    if sinks is not None:
        lse[:] = sinks
    for s, length in enumerate(LENGTHS):
        k, v = (x.double() for x in dequantize(filled.cache, torch.tensor(filled.slots[s], dtype=torch.int64)))
        masked = causal if isinstance(causal, bool) else bool(causal[s])
        ranges = [] if prefix_ranges is None else prefix_ranges[s].tolist()
        for i in range(QUERIES[s]):
            row, p = int(filled.cu_q[s]) + i, length - QUERIES[s] + i
            for head in range(HEADS * GROUP):
                q = filled.q[row, head].double()
                seen, scores = [], []
                for t in range(length):
                    near = window is None or (p - t < window and (masked or t - p < window))
                    together = any(b <= p < e and b <= t < e for b, e in ranges)
                    if not (((not masked or t <= p) and near) or together):
                        continue
                    score = float(q @ k[t, head // GROUP]) * WIDTH**-0.5
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    if alibi is not None:
                        score += float(alibi[head]) * (t - p)
                    seen.append(t)
                    scores.append(score)
                logits = torch.tensor(scores + ([] if sinks is None else [float(sinks[head])]), dtype=torch.float64)
                if seen:
                    out[row, head] = torch.softmax(logits, 0)[: len(seen)] @ v[seen, head // GROUP]
                    lse[row, head] = torch.logsumexp(logits, 0)
    return out, lse


RANGES = torch.tensor([[[2, 7], [0, 0]], [[5, 40], [3, 3]], [[0, 2], [2, 4]], [[0, 9], [0, 0]], [[27, 30], [8, 29]]])
SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0, -torch.inf, 1.5])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0, -0.1, 1.0])
EACH = torch.tensor([True, False, False, True, False])
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "non_causal": {"causal": False},
    "per_sequence_causal": {"causal": EACH},
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window both ways": {"window": 3, "causal": False},
    "window by sequence": {"window": 4, "causal": EACH},
    "softcap": {"softcap": 0.5},
    "sinks": {"sinks": SINKS},
    "alibi": {"alibi": SLOPES},
    "alibi both ways": {"alibi": SLOPES, "causal": False},
    "prefix_ranges": {"prefix_ranges": RANGES.int()},
    "ranges and window": {"prefix_ranges": RANGES.int(), "window": 3},
    "everything": {
        "causal": EACH, "window": 6, "softcap": 2.0, "sinks": SINKS, "alibi": SLOPES, "prefix_ranges": RANGES.int(),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@BOTH
def test_a_feature_is_what_its_definition_says(backend, mode, case, filled):
    call = filled(backend, mode)

    out, lse = call.attend(**CASES[case])

    right, right_lse = defined(call, **CASES[case])
    torch.testing.assert_close(out.double(), right, atol=2e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), right_lse, atol=5e-3, rtol=1e-3)
    assert not out[~right.any(-1)].any()


def test_every_case_differs_from_plain_causal_attention(filled):
    """A feature that a backend left out would pass its case if the case did not change the result."""
    call = filled()
    plain, _ = call.attend()

    for case, asked in CASES.items():
        if asked:
            assert not torch.allclose(call.attend(**asked)[0], plain, atol=0.1), case


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.INT8_PER_TOKEN_HEAD])
def test_a_window_of_one_key_gives_the_own_value(backend, mode, filled):
    call = filled(backend, mode)

    out, _ = call.attend(window=1)

    _, v = dequantize(call.cache, torch.tensor(call.slots[4][-5:]))
    right = v.repeat_interleave(GROUP, 1)
    torch.testing.assert_close(out[call.rows_of(4)].float(), right, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    "same",
    [
        {"window": 2**31 - 1},
        {"window": 33},
        {"sinks": torch.full((6,), -torch.inf)},
        {"alibi": torch.zeros(6)},
        {"prefix_ranges": torch.zeros((5, 0, 2), dtype=torch.int32)},
        {"prefix_ranges": torch.tensor([[[9, 9], [7, 3], [-5, -5], [40, 50]]] * 5, dtype=torch.int32)},
        {"causal": torch.ones(5, dtype=torch.bool)},
        {"causal": [True] * 5},
        {"causal": (True,) * 5},
    ],
    ids=lambda same: f"{next(iter(same))}-{type(next(iter(same.values()))).__name__}",
)
def test_features_that_change_nothing_change_no_bit(backend, same, filled):
    call = filled(backend)
    plain, plain_lse = call.attend()

    out, lse = call.attend(**same)

    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)


def test_each_sequence_is_masked_as_its_own_bool_says(backend, filled):
    call = filled(backend)
    by_mask = {True: call.attend()[0], False: call.attend(causal=False)[0]}

    by_tensor, _ = call.attend(causal=EACH)
    by_list, _ = call.attend(causal=EACH.tolist())

    assert torch.equal(by_tensor, by_list)
    for sequence, masked in enumerate(EACH.tolist()):
        rows = call.rows_of(sequence)
        assert torch.equal(by_tensor[rows], by_mask[masked][rows])
    assert not torch.equal(by_mask[True], by_mask[False])


def test_rows_that_see_no_key_are_zeros_and_have_the_sink_for_lse(backend, filled):
    call = filled(backend)
    blind = [4, 5, 10, 11, *range(sum(QUERIES), len(call.q))]
    """Two rows before the third sequence's first token, two of the empty one, and on the cpu one of none."""

    for sinks in (None, SINKS):
        out, lse = call.attend(sinks=sinks)
        assert (out[blind] == 0).all()
        due = torch.full((6,), -torch.inf) if sinks is None else sinks
        torch.testing.assert_close(lse[blind], due.expand(len(blind), 6), atol=1e-5, rtol=1e-5)


def test_without_any_sequence_the_lse_is_the_sink(filled, select):
    cache = filled().cache
    none = torch.zeros(0, dtype=torch.int32)
    cu_q = torch.zeros(1, dtype=torch.int32)
    made = plan(cache, cu_q, none, max_context=8)
    q = torch.ones((2, 6, WIDTH), dtype=torch.bfloat16)

    out, lse = attend(q, cache, torch.zeros((0, 3)).int(), none, cu_q, made, sinks=SINKS, return_lse=True)

    assert not out.any()
    assert torch.equal(lse, SINKS.expand(2, 6))


def test_a_large_sink_takes_all_the_weight(backend, filled):
    call = filled(backend)

    out, lse = call.attend(sinks=torch.full((6,), 1e4))

    assert (out == 0).all()
    torch.testing.assert_close(lse, torch.full(lse.shape, 1e4))


@BOTH
def test_scores_of_any_size_stay_finite_under_a_softcap(backend, mode, filled):
    call = filled(backend, mode)
    call.q.mul_(2000)

    out, lse = call.attend(softcap=50.0)

    right, right_lse = defined(call, softcap=50.0)
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), right, atol=3e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), right_lse, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@BOTH
def test_dirt_outside_of_a_window_never_leaks(backend, mode, causal, filled):
    call = filled(backend, mode)
    clean, _ = call.attend(window=4, causal=causal)
    keep = [slot for s, length in enumerate(LENGTHS) for slot in call.slots[s][max(0, length - QUERIES[s] - 3) :]]
    kept = call.cache.view, torch.tensor(keep)
    saved = [plane.view(torch.uint8).clone() for plane in (kept[0].k, kept[0].v)]
    scales = [None if x is None else x.clone() for x in (kept[0].k_scale, kept[0].v_scale)]
    page, place = kept[1] // PAGE, kept[1] % PAGE

    call.cache.buffer.fill_(0xFF)
    for plane, old in zip((kept[0].k, kept[0].v), saved, strict=True):
        plane.view(torch.uint8)[page, place] = old[page, place]
    for plane, old in zip((kept[0].k_scale, kept[0].v_scale), scales, strict=True):
        if plane is not None:
            plane[page, place] = old[page, place]

    assert torch.equal(call.attend(window=4, causal=causal)[0], clean)


@pytest.mark.parametrize("causal", [True, False])
def test_plain_torch_reads_no_page_that_no_query_sees(causal, filled):
    """A page number far outside would end in an error, were it used."""
    call = filled()
    right, _ = call.attend(window=4, causal=causal)
    # The last sequence's queries stand at 28 to 32 and see 25 to 32 at most: in the second and third page.
    call.table[4, 0] = 1 << 20
    out = torch.full_like(call.q, torch.nan)
    split = SplitPlan(1, 0, None, None)
    wanted = Features(causal=causal, window=4)

    load("kvreg_cpu.attend:attend_none")(
        AttendCall(
            call.q, call.cache.view, call.table, call.lengths, call.cu_q, out, None, WIDTH**-0.5, split, wanted
        ),
        {"scores": 1 << 20},
    )

    assert torch.equal(out, right)


def test_no_ranges_at_all_are_handed_on_as_none():
    none = torch.zeros((5, 0, 2), dtype=torch.int32)

    assert features.of(True, None, None, None, None, none) is features.of(True, None, None, None, None, None)
    assert features.of(False, 3, None, None, None, none).prefix_ranges is None


@BOTH
@pytest.mark.parametrize("queries", [(1, 1, 1), (3, 0, 8), (24, 0, 0)], ids=str)
def test_verifying_drafts_by_split_contexts_gives_what_prefill_gives(backend, mode, queries, select):
    lengths = torch.tensor([70, 3, 49], dtype=torch.int32)
    results = []
    for words in (("causal", "multi_query_split"), ("causal",)):
        torch.manual_seed(5)
        selection = select(backend, mode, 64, q_heads=4, kv_heads=2, features=words, tile=16)
        cache = KVCache.allocate(selection, 15, device="cpu")
        table = torch.arange(15, dtype=torch.int32).view(3, 5)
        slots = torch.cat([torch.arange(int(n)) + 80 * s for s, n in enumerate(lengths)])
        write(cache, *torch.randn(2, len(slots), 2, 64).bfloat16(), slots)
        cu_q = torch.tensor([0, *queries]).cumsum(0).int()
        q = torch.randn(sum(queries), 4, 64).bfloat16()
        made = plan(cache, cu_q, lengths, max_context=70)
        results.append(attend(q, cache, table, lengths, cu_q, made, return_lse=True))

    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-2)


def test_a_batch_of_the_gate_asks_for_what_attend_takes(cache_for, attend_batch):
    batch: Batch = build("mixed", head_size=40, contexts=(1, 17), features=("window", "sinks"), inputs=("normal",))
    cache = cache_for("cpu", Mode.NONE, batch)
    write(cache, batch.k, batch.v, batch.slots)

    out = attend_batch(cache, batch)

    assert out.isfinite().all()
    assert set(cache.kind.features) == {"causal", "window", "sinks"}
