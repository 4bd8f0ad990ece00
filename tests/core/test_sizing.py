"""A cache's size is the sum of whole pages that allocation lays out, and what is said to fit does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.core import layouts
from kvreg.core.devices import Device
from kvreg.core.layouts import INLINE, PLANAR, TOKEN_MINOR, LayoutId
from kvreg.core.modes import Mode
from kvreg.core.sizing import GB, Part, cache_size, memory_of, pages_of, sizes_of

H200 = Device("h200", "H200", "cuda", "sm_90", 132, memory_gb=141)
LLAMA_3_8B = Part(layers=32, head_size=128, kv_heads=8)


def size(mode, *parts, device=H200, batch=32, context=8192, page=16, layout=PLANAR, **others):
    return cache_size(
        parts or [LLAMA_3_8B],
        Mode(mode),
        device,
        batch=batch,
        context=context,
        page=page,
        layout=layout,
        **others,
    )


@pytest.mark.parametrize(
    ("mode", "bytes_per_token_head"),
    [
        ("none", 512),
        ("fp8_per_tensor", 256),
        ("int8_per_token_head", 264),
        ("fp8_per_token_head", 264),
        ("int4_per_token_head", 136),
    ],
)
def test_a_cache_of_llama_3_8b_is_layers_times_heads_times_tokens_times_bytes(mode, bytes_per_token_head):
    found = size(mode)

    assert found.bytes == 32 * 8 * 32 * 8192 * bytes_per_token_head
    assert found.bf16_bytes == 32 * 8 * 32 * 8192 * 512
    assert found.compression == pytest.approx(512 / bytes_per_token_head)


def test_an_fp32_model_is_still_set_beside_bf16():
    found = size("none", dtype="fp32")

    assert (found.bytes, found.compression) == (2 * found.bf16_bytes, 0.5)


def test_sequences_take_whole_pages():
    part = Part(1, 128, 1)

    assert size("none", part, batch=1, context=1).bytes == 16 * 512
    assert size("none", part, batch=1, context=17).bytes == 32 * 512
    assert size("none", part, batch=3, context=545, page=544).bytes == 3 * 1088 * 512


@given(st.integers(1, 5000), st.sampled_from([16, 32, 48, 528, 544]), st.integers(1, 3000))
def test_a_window_holds_the_pages_that_its_widest_place_touches(context, page, window):
    touched = 0
    for last in range(max(0, context - 2 * page), context):
        first = max(0, last - window + 1)
        touched = max(touched, last // page - first // page + 1)

    found = pages_of(context, page, window)

    assert touched <= found <= min(-(-context // page), touched + 1)
    if context >= window + 2 * page:
        assert found == touched


def test_a_window_that_is_longer_than_the_context_changes_nothing():
    assert pages_of(100, 16, 4096) == pages_of(100, 16) == 7


def test_layers_with_a_window_stop_growing():
    sliding, full = Part(5, 128, 8, window=1024), Part(1, 128, 8)

    short, long = size("none", sliding, full, context=4096), size("none", sliding, full, context=8192)

    assert long.bytes - short.bytes == 32 * 4096 * 8 * 512


@given(
    st.sampled_from(list(Mode)),
    st.lists(
        st.builds(
            Part,
            layers=st.integers(1, 80),
            head_size=st.integers(4, 64).map(lambda n: 8 * n),
            kv_heads=st.integers(1, 16),
            window=st.none() | st.integers(1, 8192),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([16, 528, 544]),
    st.integers(1, 64),
    st.integers(1, 100_000),
    st.sampled_from([PLANAR, INLINE]),
)
def test_what_is_said_to_fit_fits_and_one_more_does_not(mode, parts, page, batch, context, layout):
    def total(sequences, tokens):
        return size(mode, *parts, batch=sequences, context=tokens, page=page, layout=layout).bytes

    found = size(mode, *parts, batch=batch, context=context, page=page, layout=layout)

    assert total(found.sequences_fit, context) <= 141 * GB < total(found.sequences_fit + 1, context)
    if found.context_fit is None:
        assert total(batch, 1 << 40) <= 141 * GB
    else:
        assert found.context_fit % page == 0
        assert total(batch, found.context_fit) <= 141 * GB or found.context_fit == 0
        assert total(batch, found.context_fit + 1) > 141 * GB


def test_weights_are_taken_off_first():
    light, heavy = size("int4_per_token_head"), size("int4_per_token_head", weights_bytes=16 * GB)

    assert heavy.bytes == light.bytes
    assert heavy.sequences_fit == (141 - 16) * GB // (heavy.bytes // 32)
    assert heavy.sequences_fit < light.sequences_fit


def test_weights_beyond_the_card_leave_room_for_nothing():
    found = size("none", weights_bytes=200 * GB)

    assert (found.sequences_fit, found.context_fit) == (0, 0)


def test_layers_with_windows_alone_fit_at_any_context():
    assert size("none", Part(32, 128, 8, window=4096)).context_fit is None


def test_unknown_memory_says_nothing_of_what_fits():
    found = size("none", device=replace(H200, memory_gb=None))

    assert (found.memory_bytes, found.sequences_fit, found.context_fit) == (None, None, None)
    assert found.bytes == size("none").bytes


def test_memory_is_counted_in_gigabytes_of_ten_to_the_ninth():
    assert memory_of(H200) == 141_000_000_000


@pytest.mark.parametrize(("mode", "layout"), [(m, LayoutId.parse(name)) for m in Mode for name in layouts.known(m)])
def test_a_page_is_as_large_as_its_layout_lays_it_out(mode, layout):
    page_bytes = layouts.strides(layout, mode, 96, 8, 528).page_bytes

    assert size(mode, Part(1, 96, 8), batch=1, context=528, page=528, layout=layout).bytes == page_bytes


def test_int4_is_compared_with_bf16_in_whatever_layout():
    assert size("int4_per_token_head", layout=TOKEN_MINOR) == size("int4_per_token_head", layout=PLANAR)


def test_a_mode_that_is_refused_for_its_layout_has_a_size_all_the_same(workshop):
    workshop.validate("alpha")

    sizes = sizes_of(workshop.ask("alpha", None, 96, layout="planar.2"), layers=7)

    assert sizes == sizes_of(workshop.ask("alpha", None, 96), layers=7)


def test_a_selection_is_sized_in_each_mode_refused_ones_included(workshop):
    workshop.validate("alpha")

    found = sizes_of(workshop.ask("alpha", None, 96, kv_heads=2, batch=3, context=100), layers=7)

    assert list(found) == list(Mode)
    assert found[Mode.INT8_PER_TOKEN_HEAD].bytes == 7 * 2 * 3 * 112 * 200
