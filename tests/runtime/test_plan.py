"""Plans and the rule between decode and prefill."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch

from kvreg.core.errors import CallError, DeviceUnavailable, UsageError, WrongCache, WrongShape
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.launchers import load
from kvreg.runtime.plan import plan
from kvreg.testing import build

MODES = tuple(Mode)


class Recorder:
    """A launcher that splits as told, notes what it is called with and fills the output."""

    def __init__(self, name: str, calls: list) -> None:
        self.name, self.calls = name, calls

    def splits(self, rows, kv_heads, group, max_context, compute_units, config) -> int:
        self.calls.append((rows, kv_heads, group, max_context, compute_units, dict(config)))
        return 5

    def chunk(self, config) -> int:
        return config["chunk"]

    def __call__(self, call, config) -> None:
        self.calls.append((self.name, call.split, dict(config)))
        call.out.fill_(1.0)


@pytest.fixture
def record(select, monkeypatch):
    """Return a function that gives (cache, calls): a cache whose decode and prefill only take notes."""
    calls: list = []
    module = types.ModuleType("kvreg_recorder")
    module.decode, module.prefill = Recorder("decode", calls), Recorder("prefill", calls)
    monkeypatch.setitem(sys.modules, "kvreg_recorder", module)
    load.cache_clear()

    def make(*features: str) -> tuple[KVCache, list]:
        selection = select(head_size=64, q_heads=6, features=("causal", *features))
        result = selection.result
        ops = dict(result.ops)
        for op in (Op.DECODE, Op.PREFILL):
            launcher = f"kvreg_recorder:{op}"
            ops[op] = replace(
                ops[op], launcher=launcher, config={"chunk": 64, "tuned": 1}, default_config={"chunk": 32, "tuned": 0}
            )
        return KVCache.allocate(replace(selection, results=(replace(result, ops=ops),)), 8), calls

    yield make
    load.cache_clear()


@pytest.fixture
def recorded(record):
    """Return (cache, calls) of three heads a group and no feature but causal."""
    return record()


def batch_of(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n + 1, dtype=torch.int32), torch.ones(n, dtype=torch.int32)


def attend_rows(cache: KVCache, rows: int, n: int, made) -> torch.Tensor:
    cu_q, seq_lens = batch_of(n)
    table = torch.zeros((n, -(-made.max_context // 16)), dtype=torch.int32)
    cu_q = cu_q.clamp(max=rows)
    return attend(torch.zeros((rows, 6, 64), dtype=torch.bfloat16), cache, table, seq_lens, cu_q, made)


def test_unlike_lengths_are_cut_in_parts_of_one_length_and_alike_ones_evenly(recorded):
    cache, _ = recorded

    unlike = plan(cache, *batch_of(4), max_context=4096, total_context=5000)
    alike = plan(cache, *batch_of(4), max_context=4096, total_context=4 * 4000)

    # For 5 programs of one unit, in multiples of 32 as the default config says: sqrt(2 * 512 / 5 * 4 * 4096 * 2 / 5)
    # is 1158.
    assert (unlike.split.chunk, unlike.split.splits, unlike.split.shares) == (1152, 4, 0)
    assert (alike.split.chunk, alike.split.splits) == (0, 5)


def test_unlike_lengths_are_read_in_equal_shares_where_the_launcher_has_them(recorded, monkeypatch):
    """In a workspace with a place for each program beside those of the rows; calls that are cut need their parts'."""
    cache, calls = recorded
    monkeypatch.setattr(Recorder, "shares", lambda self, kv_heads, units, config: 40, raising=False)

    def shares(**asked) -> tuple[int, int]:
        split = plan(cache, *batch_of(4), max_context=4096, **asked).split
        return split.shares, split.partial_out.shape[0]

    made = plan(cache, *batch_of(4), max_context=4096, total_context=5000)
    calls.clear()
    attend_rows(cache, 4, 4, made)

    assert calls == [("decode", made.split, {"chunk": 32, "tuned": 0})], "the tuner tries no shares"
    assert shares(total_context=5000) == (40, 44)
    assert shares() == shares(total_context=4 * 4000) == (0, 20)
    assert shares(total_context=5000, batch_invariant=True) == (0, 4 * 128)


@pytest.mark.parametrize("total", [-1, 4 * 100 + 1, 2.0, True], ids=str)
def test_a_sum_of_lengths_that_cannot_be_is_refused(recorded, total):
    with pytest.raises((CallError, WrongShape), match=r"^total_context: required "):
        plan(recorded[0], *batch_of(4), max_context=100, total_context=total)


@pytest.mark.parametrize("mode", MODES)
def test_a_result_does_not_depend_on_whether_unlike_lengths_are_known(select, mode):
    """Within rounding: other parts are added up."""
    batch = build("decode", head_size=64, group=3, contexts=(700, 3, 1, 0), inputs=("normal",))
    selection = select(mode=mode, head_size=64, q_heads=batch.q.shape[1], kv_heads=batch.kv_heads)
    scales = (0.05, 0.05) if mode is Mode.FP8_PER_TENSOR else None
    cache = KVCache.allocate(selection, 64, tensor_scales=scales)
    write(cache, batch.k, batch.v, batch.slots)
    outs = [
        attend(
            batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q,
            plan(cache, batch.cu_q, batch.seq_lens, max_context=700, total_context=total),
        )
        for total in (None, 704)
    ]  # fmt: skip

    torch.testing.assert_close(outs[0], outs[1], atol=1e-2, rtol=1e-2)


def test_the_decode_launcher_says_how_contexts_are_cut_and_gets_the_workspace(recorded):
    cache, calls = recorded

    made = plan(cache, *batch_of(3), max_context=100)

    assert calls == [(3, 2, 3, 100, None, {"chunk": 64, "tuned": 1})]
    assert (made.split.splits, made.split.chunk, made.n_seqs, made.max_context) == (5, 0, 3, 100)
    assert made.split.partial_out.shape == (15, 6, 64)
    assert made.split.partial_lse.shape == (15, 6, 2)
    assert made.split.partial_out.dtype == made.split.partial_lse.dtype == torch.float32


def test_a_batch_invariant_plan_has_fixed_parts_and_default_parameters(recorded):
    cache, calls = recorded

    made = plan(cache, *batch_of(3), max_context=100, batch_invariant=True)
    attend_rows(cache, 3, 3, made)

    assert (made.split.splits, made.split.chunk) == (4, 32)
    assert calls == [("decode", made.split, {"chunk": 32, "tuned": 0})]


@pytest.mark.parametrize(
    ("rows", "n", "op"), [(3, 3, "decode"), (2, 3, "decode"), (4, 3, "prefill"), (1, 1, "decode")]
)
def test_at_most_one_row_a_sequence_is_decode_more_is_prefill(rows, n, op, recorded):
    cache, calls = recorded
    made = plan(cache, *batch_of(n), max_context=100)
    calls.clear()

    attend_rows(cache, rows, n, made)

    ((name, split, config),) = calls
    assert name == op
    assert config == {"chunk": 64, "tuned": 1}
    assert (split is made.split) == (op == "decode")
    assert split.splits == (5 if op == "decode" else 1)


@pytest.mark.parametrize(
    ("rows", "n", "op"), [(3, 3, "decode"), (24, 3, "decode"), (25, 3, "prefill"), (8, 1, "decode"), (9, 1, "prefill")]
)
def test_drafts_of_up_to_eight_rows_a_sequence_are_verified_by_decode(rows, n, op, record):
    cache, calls = record("multi_query_split")
    made = plan(cache, *batch_of(n), max_context=100)
    assert calls.pop() == (n, 2, 3, 100, None, {"chunk": 64, "tuned": 1}), "rows of one sequence read the same keys"

    attend_rows(cache, rows, n, made)

    ((name, split, _),) = calls
    assert name == op
    assert split.splits == (5 if op == "decode" else 1)
    assert made.split.partial_out.shape == (8 * n * 5, 6, 64)
    assert made.split.partial_lse.shape == (8 * n * 5, 6, 2)


def test_a_plan_for_drafts_is_of_another_kind(record):
    (plain, _), (drafts, _) = record(), record("multi_query_split")

    with pytest.raises(WrongCache, match=r"plan: required one for a cache with features .*multi_query_split"):
        attend_rows(drafts, 3, 3, plan(plain, *batch_of(3), max_context=100))


def test_no_rows_and_no_sequences_launch_nothing(recorded):
    cache, calls = recorded
    made, none = plan(cache, *batch_of(2), max_context=100), plan(cache, *batch_of(0), max_context=100)
    calls.clear()

    assert attend_rows(cache, 0, 2, made).shape == (0, 6, 64)
    assert not attend_rows(cache, 4, 0, none).any()
    write(cache, *torch.ones(2, 3, 2, 64).bfloat16(), torch.tensor([], dtype=torch.int32))

    assert calls == []
    assert not cache.buffer.any()


@pytest.mark.parametrize(
    ("backend", "mode"),
    [*(("cpu", mode) for mode in MODES), *(("triton", mode) for mode in (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD))],
    indirect=["backend"],
)
def test_a_batch_invariant_sequence_does_not_see_its_neighbours(backend, mode, cache_for):
    batch = build("decode", head_size=64, contexts=(130, 1, 97, 33), inputs=("normal",), group=2)
    cache = cache_for(backend, mode, batch, chunk=32)
    tuned = cache.selection.result.ops[Op.DECODE]
    default = {**tuned.default_config, **({"chunk": 32} if "chunk" in tuned.default_config else {})}
    ops = {**cache.selection.result.ops, Op.DECODE: replace(tuned, default_config=default)}
    selection = replace(cache.selection, results=(replace(cache.selection.result, ops=ops),))
    cache = KVCache.from_buffer(selection, cache.buffer)
    write(cache, batch.k, batch.v, batch.slots)

    def run(which: list[int]) -> torch.Tensor:
        cu_q = torch.arange(len(which) + 1, dtype=torch.int32)
        seq_lens = batch.seq_lens[which]
        made = plan(cache, cu_q, seq_lens, max_context=int(seq_lens.max()), batch_invariant=True)
        return attend(batch.q[which], cache, batch.page_table[which], seq_lens, cu_q, made)

    together = run([0, 1, 2, 3])

    for index in range(4):
        assert torch.equal(run([index])[0], together[index])


def test_a_plan_reads_no_value_and_so_never_waits(select):
    """On a card a wait would show as a read of the tensors' values; a tensor without values cannot be read."""
    cache = KVCache.allocate(select(), 2)
    cache.device = torch.device("meta")
    cu_q, seq_lens = (x.to("meta") for x in batch_of(4))

    made = plan(cache, cu_q, seq_lens, max_context=32)

    assert made.n_seqs == 4


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("kvreg_cpu.write", UsageError, "module:attribute"),
        (":write", UsageError, "module:attribute"),
        ("kvreg_cpu.write:absent", UsageError, "attribute absent of kvreg_cpu.write"),
        ("kvreg_absent.write:write", DeviceUnavailable, "pip install 'kvreg[kernels]'"),
    ],
)
def test_a_launcher_that_cannot_be_loaded_says_why(path, error, words):
    with pytest.raises(error) as caught:
        load(path)

    assert words in str(caught.value)


def test_a_launcher_is_loaded_once():
    assert load("kvreg_cpu.write:write_none") is load("kvreg_cpu.write:write_none")


def test_an_out_made_under_inference_mode_is_filled_outside_of_it_too(cache_for):
    batch = build("decode", head_size=40, contexts=(9, 17), inputs=("normal",))
    cache = cache_for("cpu", "none", batch)
    made = plan(cache, batch.cu_q, batch.seq_lens, max_context=17)
    write(cache, batch.k, batch.v, batch.slots)
    arguments = (batch.q, cache, batch.page_table, batch.seq_lens, batch.cu_q, made)
    with torch.inference_mode():
        out = torch.full_like(batch.q, torch.nan)

    assert torch.equal(attend(*arguments, out=out), attend(*arguments))
