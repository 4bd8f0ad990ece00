"""What the batch builder promises to those who judge kernels with it."""

from __future__ import annotations

import pytest
import torch

from kvreg.core.errors import UsageError
from kvreg.core.layouts import INLINE, PLANAR, LayoutId
from kvreg.core.modes import Mode
from kvreg.gate import reference_of
from kvreg.oracle import dequantize, rotate
from kvreg.runtime.launchers import CacheView, Features
from kvreg.testing import DRAWN, INPUTS, KINDS, TENSOR_SCALES, Kind, allocate, build

INT4 = Mode.INT4_PER_TOKEN_HEAD


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_labelled_sequence_for_each_context_input_and_seed(kind: Kind) -> None:
    batch = build(kind, head_size=32, contexts=(1, 17), seeds=(3, 4), group=7, layout=INLINE)

    made = [(x.context, x.input, x.seed) for x in batch.labels if x.context]
    assert sorted(made) == sorted((c, i, s) for c in (1, 17) for i in INPUTS for s in (3, 4))
    assert {(x.group, x.kind, x.layout) for x in batch.labels} == {(7, kind, "inline.1")}
    assert batch.seq_lens.tolist() == list(batch.contexts) == [x.context for x in batch.labels]
    assert batch.cu_q.tolist() == list(batch.cu_q_host)


def test_kinds_differ_in_their_query_lengths() -> None:
    decode, prefill, mixed = (build(kind, head_size=32, contexts=(1, 17, 200), inputs=("normal",)) for kind in KINDS)

    assert decode.q_lens == (1, 1, 1)
    assert prefill.q_lens == (1, 17, 64)
    assert set(mixed.q_lens) >= {0, 1, 3, 5, 64}
    assert [q for q, c in zip(mixed.q_lens, mixed.contexts, strict=True) if not c] == [1, 0, 3]
    assert mixed.q.shape[0] == sum(mixed.q_lens) + 2


@pytest.mark.parametrize("page", [16, 48])
def test_slots_follow_the_page_table_and_the_last_page_is_nobodys(page: int) -> None:
    batch = build("mixed", head_size=32, contexts=(1, 17, 100), page=page, padding=0)

    kept = batch.slots[batch.slots >= 0]
    assert len(kept) == sum(batch.contexts) == len(kept.unique())
    pages = kept // page
    assert int(pages.max()) == batch.pages - 2
    assert pages.unique_consecutive().tolist() != sorted(pages.unique().tolist())
    for s, context in enumerate(batch.contexts):
        due = [int(batch.page_table[s, t // page]) * page + t % page for t in range(context)]
        assert batch.slots[(batch.row_sequence == s).nonzero()[:, 0]].sort()[0].tolist() == sorted(due)
        assert (batch.page_table[s, -(-context // page) :] == batch.pages - 1).all()


def test_some_rows_have_slot_minus_one_and_as_many_have_none() -> None:
    batch = build("decode", head_size=32, contexts=(17, 64), padding=4)

    skipped = (batch.slots < 0).nonzero()[:, 0].tolist()
    assert len(skipped) == 4
    assert batch.k.shape[0] - len(batch.slots) == 4
    assert min(skipped) < sum(batch.contexts) // 2
    assert (batch.row_sequence[skipped] == -1).all()


def test_padded_batches_store_the_same_rows_as_batches_without_padding() -> None:
    a, b = (build("decode", head_size=32, contexts=(1, 17, 64), padding=padding) for padding in (0, 3))

    assert torch.equal(a.filled(INT4).storage, b.filled(INT4).storage)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("group", [1, 8])
def test_stored_rows_do_not_depend_on_group_or_kind(kind: Kind, group: int) -> None:
    a = build("decode", head_size=40, contexts=(1, 17, 64), group=4)
    b = build(kind, head_size=40, contexts=(1, 17, 64), group=group)

    assert torch.equal(a.k, b.k)
    assert torch.equal(a.v, b.v)


def test_other_seeds_have_other_values() -> None:
    a, b = (build("decode", head_size=32, contexts=(64,), inputs=("normal",), seeds=(s,)) for s in (0, 1))

    assert (a.k != b.k).float().mean() > 0.9
    assert (a.k[:64] != a.v[:64]).float().mean() > 0.9


def test_hard_inputs_are_what_they_are_called() -> None:
    of = {
        name: build("decode", head_size=96, contexts=(64,), inputs=(name,), seeds=(2,), padding=0, dtype="fp32")
        for name in INPUTS
    }

    assert 2 < of["q4"].q.std() < 6
    assert of["normal"].q.std() < 1.5
    assert of["channel30"].k.std(dim=(0, 1)).argmax() == 14
    assert of["channel30"].k[..., 14].std() > 20
    assert of["one_sided"].k.min() >= 0
    # Most of those rows are one-sided after the rotation too, in every block.
    rotated = rotate(of["one_sided"].k[::2], 96)
    assert (rotated.amin(-1) > 0).double().mean() > 0.5


def test_strided_inputs_have_nan_neighbours_and_the_same_values() -> None:
    batch = build("mixed", head_size=40, contexts=(1, 17))
    strided = batch.strided()

    for name in ("q", "k", "v"):
        view = getattr(strided, name)
        assert torch.equal(view, getattr(batch, name))
        assert view.stride(2) == 1
        assert not view.is_contiguous()
        around = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
        assert around.isnan().any()
        assert (around > 1e29).any()


@pytest.mark.parametrize("layout", [PLANAR, INLINE], ids=str)
@pytest.mark.parametrize("mode", list(Mode), ids=str)
def test_views_of_a_cache_tile_its_bytes(mode: Mode, layout: LayoutId) -> None:
    """Each byte of a cache without gaps belongs to one element of one plane."""
    cache = allocate(mode, pages=3, page=16, kv_heads=2, head_size=40, layout=layout, fill=0)

    for plane in (cache.k, cache.v, cache.k_scale, cache.v_scale):
        if plane is not None:
            before = int((cache.storage != 0).sum())
            bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[plane.element_size()]
            plane.view(bits).fill_(-1)
            assert int((cache.storage == 255).sum()) == before + plane.numel() * plane.element_size()
    assert (cache.storage == 255).all()


@pytest.mark.parametrize(
    ("layout", "head", "lead", "due"),
    [(PLANAR, 96, 0, 16), (PLANAR, 40, 0, 4), (INLINE, 128, 0, 4), (PLANAR, 128, 4, 4), (PLANAR, 72, 0, 4)],
    ids=str,
)
def test_alignment_is_the_largest_power_of_two_in_every_step(layout: LayoutId, head: int, lead: int, due: int) -> None:
    cache = allocate(INT4, pages=2, page=16, kv_heads=3, head_size=head, layout=layout, lead=lead)

    steps = [cache.k.data_ptr(), cache.v.data_ptr(), *cache.k.stride()[:3], *cache.v.stride()[:3]]
    assert cache.alignment == due
    assert all(step % due == 0 for step in steps)
    assert due == 16 or any(step % (2 * due) for step in steps)


def test_a_cache_view_is_made_of_its_fields() -> None:
    cache = build("decode", head_size=32, contexts=(17,)).filled(INT4)

    view = CacheView(**cache.fields())

    assert view.k.data_ptr() == cache.k.data_ptr()
    assert (view.mode, view.head_size, view.kv_heads, view.page) == (INT4, 32, 2, 16)


def test_only_a_cache_with_a_scale_a_tensor_has_tensor_scales_and_they_differ() -> None:
    batch = build("decode", head_size=32, contexts=(17,))

    for mode in Mode:
        scales = CacheView(**batch.cache(mode).fields()).tensor_scales
        assert (scales is not None) == (mode is Mode.FP8_PER_TENSOR)
    assert torch.equal(batch.cache(Mode.FP8_PER_TENSOR).tensor_scales, torch.tensor(TENSOR_SCALES))
    assert len({1.0, *TENSOR_SCALES}) == 3
    assert batch.cache(Mode.FP8_PER_TENSOR, tensor_scales=(2.0, 3.0)).tensor_scales.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("mode", [Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD], ids=str)
def test_rows_in_one_fp8_type_are_those_of_the_other_but_for_what_does_not_fit(mode: Mode) -> None:
    batch = build("decode", head_size=32, contexts=(17, 64), inputs=("normal",))

    of = {fp8: batch.filled(mode, fp8=fp8) for fp8 in ("e4m3fn", "e4m3fnuz")}

    assert [str(cache.k.dtype) for cache in of.values()] == ["torch.float8_e4m3fn", "torch.float8_e4m3fnuz"]
    slots = batch.slots[batch.slots >= 0]
    a, b = (dequantize(cache, slots)[0] for cache in of.values())
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-3)


def test_a_batch_is_causal_unless_told_otherwise() -> None:
    batch = build("decode", head_size=32, contexts=(17,))

    assert batch.features.words == ("causal",)
    assert {x.features for x in batch.labels} == {"causal"}
    assert Features(**batch.features.fields()) == Features()


@pytest.mark.parametrize("word", [word for word in DRAWN if word != "causal"])
def test_each_feature_changes_the_result_of_a_batch(word: str) -> None:
    plain, asked = (
        build("prefill", head_size=32, contexts=(17, 200), inputs=("normal",), seeds=range(3), features=features)
        for features in ((), (word,))
    )

    cache = plain.filled(Mode.NONE)

    changed = (reference_of(asked, cache).out - reference_of(plain, cache).out).norm() / plain.q.shape[0]
    assert bool(changed > 1e-2) == (word != "multi_query_split")
    assert torch.equal(asked.k, plain.k)


def test_words_are_in_the_order_of_requests_and_name_the_masking() -> None:
    asked = build("decode", head_size=32, contexts=(17,), features=("sinks", "window", "non_causal"))
    plain = build("decode", head_size=32, contexts=(17,), features=("alibi",))

    assert asked.features.words == ("non_causal", "window", "sinks")
    assert {x.features for x in asked.labels} == {"non_causal+window+sinks"}
    assert plain.features.words == ("causal", "alibi")


@pytest.mark.parametrize("features", [("qq_bias",), ("windows",), ("causal", "non_causal")], ids=str)
def test_words_that_no_batch_can_be_built_for_are_refused(features: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"batch features: required words of causal, .* found {', '.join(features)}"):
        build("decode", head_size=32, contexts=(17,), features=features)


def test_parameters_are_those_that_the_gate_promises() -> None:
    words = ("window", "softcap", "sinks", "alibi", "prefix_ranges", "per_sequence_causal")
    asked = build("mixed", head_size=32, group=3, contexts=(17, 300), seeds=(0, 1), features=words).features

    assert (asked.window, asked.softcap) == (5, 5.0)
    assert build("decode", head_size=32, contexts=(17,), features=("window",), window=100).features.window == 100
    assert asked.sinks.dtype == asked.alibi.dtype == torch.float32
    assert asked.sinks.shape == (6,)
    assert asked.alibi.tolist() == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625]
    assert asked.causal.dtype == torch.bool
    assert asked.prefix_ranges.dtype == torch.int32
    assert asked.prefix_ranges.shape[::2] == (len(asked.causal), 2)


@pytest.mark.parametrize("contexts", [(17, 1024), (17, 64, 300)], ids=str)
def test_every_length_has_causal_sequences_and_others(contexts: tuple[int, ...]) -> None:
    batch = build(
        "prefill", head_size=32, contexts=contexts, inputs=("normal",), seeds=(0, 1), features=("per_sequence_causal",)
    )

    made = {(length, causal) for length, causal in zip(batch.contexts, batch.features.causal.tolist(), strict=True)}
    assert made == {(length, causal) for length in contexts for causal in (True, False)}


def test_prefix_ranges_hold_query_rows_reach_beyond_the_end_and_are_empty_by_turns() -> None:
    batch = build("prefill", head_size=32, contexts=(17, 64, 300), seeds=range(3), features=("prefix_ranges",))

    _, ahead, none = batch.features.prefix_ranges.unbind(1)
    begin, end = ahead.unbind(1)
    lengths = batch.seq_lens
    assert (begin >= 0).all()
    assert (end > lengths).any()
    assert (end <= lengths).any()
    assert (torch.minimum(end, lengths) > lengths - torch.tensor(batch.q_lens)).all()
    assert (none[:, 0] >= none[:, 1]).all()


def test_drafts_have_up_to_eight_query_rows_a_sequence() -> None:
    plain, drafts = (
        build("decode", head_size=32, contexts=(1, 17, 64, 300), features=features)
        for features in (("causal",), ("multi_query_split",))
    )

    assert set(plain.q_lens) == {1}
    rows_of = {context: set() for context in drafts.contexts}
    for rows, context in zip(drafts.q_lens, drafts.contexts, strict=True):
        rows_of[context].add(rows)
    assert rows_of == {1: {1}, 17: {1, 3, 5, 8}, 64: {1, 3, 5, 8}, 300: {1, 3, 5, 8}}
    assert all(rows <= context for rows, context in zip(drafts.q_lens, drafts.contexts, strict=True))
    assert drafts.q.shape[0] <= 8 * len(drafts.q_lens)
