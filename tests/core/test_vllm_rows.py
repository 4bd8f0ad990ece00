"""Rows 1 to 14 of "accepted, then crashes or is silently wrong" in vLLM 0.33: what select says to each of them.

Each test names its row; tests/runtime/test_vllm_rows.py has those that a kernel or the runtime must get right.
"""

import json
from pathlib import Path

import pytest

from kvreg.core import layouts
from kvreg.core.asking import make_request
from kvreg.core.constraints import failed
from kvreg.core.environment import Environment
from kvreg.core.errors import UsageError
from kvreg.core.index import Index
from kvreg.core.layouts import PLANAR
from kvreg.core.model_asking import parts_of
from kvreg.core.models import read_model
from kvreg.core.modes import Mode
from kvreg.core.registry import backends
from kvreg.core.requests import Op
from kvreg.core.resolve import resolve_among
from kvreg.core.select import select
from kvreg.core.sizing import cache_size

MODELS = Path(__file__).parent / "models"
BACKENDS = {backend.name: backend for backend in backends() if backend.name in ("cuda", "rocm", "xpu", "cpu")}
DEVICES = {device.key: device for backend in BACKENDS.values() for device in backend.devices()}
INT4, INT8, FP8 = Mode.INT4_PER_TOKEN_HEAD, Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD
PER_TOKEN_HEAD = (INT4, INT8, FP8)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One home for all questions here, so that what the platforms ship is read once."""
    return tmp_path_factory.mktemp("home")


def variants(mode, *ops, platforms=tuple(BACKENDS)):
    found = [
        variant
        for name in platforms
        for variant in BACKENDS[name].variants()
        if variant.mode is mode and variant.op in (ops or tuple(Op))
    ]
    assert found, (mode, ops)
    return found


def codes(variant, device="h200", head_size=128, **asked):
    if variant.constraints.archs:  # on another arch it is refused for that too, whatever the row says
        device = next(key for key, each in DEVICES.items() if each.arch in variant.constraints.archs)
    return {each.code for each in failed(variant, make_request(device, None, head_size, **asked), DEVICES[device])}


def answer(device, mode, head_size, home, **asked):
    """Return the only result of a real platform without any evidence."""
    index = Index(list(BACKENDS.values()), home, shipped=None)
    request = make_request(device, mode, head_size, **asked)
    return select(request, resolve_among(device, index.devices()), Environment(home), index=index).results[0]


@pytest.mark.parametrize("head_size", [36, 44, 52, 60, 68, 76, 84, 92, 100, 108, 116, 124])
def test_row_1_an_int4_head_that_8_does_not_divide_is_refused(head_size):
    for variant in variants(INT4):
        assert codes(variant, head_size=head_size) == {"head_size"}


@pytest.mark.parametrize("mode", [INT8, FP8])
@pytest.mark.parametrize("head_size", [33, 42, 66, 90, 98, 126])
def test_row_2_an_8_bit_head_that_4_does_not_divide_is_refused(mode, head_size):
    for variant in variants(mode):
        assert codes(variant, head_size=head_size) == {"head_size"}


@pytest.mark.parametrize("mask", ["non_causal", "per_sequence_causal"])
def test_row_3_int4_attends_both_ways_where_it_is_asked_to(mask):
    for variant in variants(INT4):
        assert codes(variant, features=[mask]) == set()


@pytest.mark.parametrize("feature", ["chunked_lookback", "rswa", "qq_bias"])
def test_row_4_masks_that_no_kernel_has_are_refused_and_not_dropped(feature):
    for mode in Mode:
        for variant in variants(mode, Op.DECODE, Op.PREFILL):
            assert codes(variant, features=["causal", feature]) == {"feature"}


def test_row_4_image_ranges_cut_to_the_window_are_refused_and_not_widened():
    sliding, full = read_model(MODELS / "gemma-4-31b.json").groups

    assert sliding.refusal.code == "feature"
    assert full.refusal is None


def test_row_5_fused_fp8_output_is_refused_in_every_mode():
    for mode in Mode:
        for variant in variants(mode, Op.DECODE, Op.PREFILL):
            assert codes(variant, features=["fp8_output"]) == {"feature"}


@pytest.mark.parametrize("word", ["fp8_e5m2", "fp8_e5m2fnuz"])
def test_row_8_e5m2_is_no_mode_and_nothing_is_stored_under_its_name(word):
    with pytest.raises(UsageError) as caught:
        make_request("h200", word, 128)

    assert "fp8_per_tensor" in caught.value.message
    stored = {
        variant.format(device, 128).fp8 for mode in Mode for variant in variants(mode) for device in DEVICES.values()
    }
    assert stored == {None, "e4m3fn", "e4m3fnuz"}


@pytest.mark.parametrize(
    ("word", "mode"),
    [("fp8", "fp8_per_tensor"), ("fp8_e4m3", "fp8_per_tensor"), ("auto", "none"), ("bfloat16", "none")],
)
def test_row_8_words_of_vllm_lead_to_the_mode_that_stores_the_same(word, mode):
    with pytest.raises(UsageError) as caught:
        make_request("h200", word, 128)

    assert caught.value.message.endswith(f"found '{word}', a word of vLLM; take {mode}")
    assert caught.value.candidates == (mode,)


@pytest.mark.parametrize(("mode", "storage"), [(INT8, "int8"), (INT4, "uint8")])
def test_row_9_on_xpu_a_mode_is_served_as_itself_or_refused_and_never_as_another(mode, storage, home):
    for variant in variants(mode, platforms=("xpu",)):
        assert variant.format(DEVICES["b580"], 128).storage == storage

    result = answer("b580", mode.value, 128, home)

    assert result.bytes_per_token_head == {"int8": 264, "uint8": 136}[storage]  # room for the scales
    assert result.format.storage == storage
    short = {"int8": "int8", "uint8": "int4"}[storage]
    assert {each.variant for each in result.decisions} == {f"triton-{short}-{op}@1" for op in Op}


@pytest.mark.parametrize("device", ["mi210", "mi250x", "rx7900xtx", "w7900", "strix-halo"])
@pytest.mark.parametrize("mode", ["fp8_per_token_head", "fp8_per_tensor"])
def test_row_10_emulated_fp8_says_so_and_names_int8(device, mode, home):
    notes = [note for note in answer(device, mode, 128, home).notes if note.code == "emulated_fp8"]

    assert len(notes) == 1
    assert f"e4m3fn is emulated on {DEVICES[device].arch}" in notes[0].text
    assert "int8_per_token_head" in notes[0].text


@pytest.mark.parametrize("device", ["h200", "mi300x", "mi355x", "rx9070xt"])
def test_row_10_a_card_with_the_unit_has_no_such_note(device, home):
    notes = {note.code for note in answer(device, "fp8_per_token_head", 128, home).notes}

    assert notes - {"never_run"} == set()  # which every card has that nobody has run kvreg on


def test_row_11_layers_that_share_a_cache_are_asked_for_and_take_no_memory():
    model = read_model(MODELS / "gemma-4-e2b.json")

    assert [(len(group.layers), group.cached) for group in model.groups] == [(28, 12), (7, 3)]
    assert "shared_cache" in {note.code for note in model.notes}


def test_row_12_groups_of_two_head_sizes_are_two_requests_with_their_own_heads():
    groups = read_model(MODELS / "gemma-4-31b.json", text_only=True).groups

    assert [(group.head_size, group.q_heads, group.kv_heads) for group in groups] == [(256, 32, 16), (512, 32, 4)]


@pytest.mark.parametrize("mode", PER_TOKEN_HEAD)
@pytest.mark.parametrize("page", [16, 528])
def test_row_13_pages_of_two_head_sizes_are_padded_to_nothing(mode, page):
    model = read_model(MODELS / "gemma-4-31b.json", text_only=True)
    sliding, full = parts_of(model)

    for part in (sliding, full):
        page_bytes = layouts.strides(PLANAR, mode, part.head_size, part.kv_heads, page).page_bytes
        assert page_bytes == page * part.kv_heads * mode.bytes_per_token_head(part.head_size)
    size = cache_size([sliding, full], mode, DEVICES["h200"], batch=1, context=page, page=page, layout=PLANAR)
    assert size.bytes == page * (50 * 16 * mode.bytes_per_token_head(256) + 10 * 4 * mode.bytes_per_token_head(512))


def test_row_14_values_of_another_width_than_keys_are_refused(tmp_path):
    for mode in PER_TOKEN_HEAD:
        for variant in variants(mode):
            assert codes(variant, features=["causal", "diff_v"]) == {"feature"}

    fields = {"model_type": "mimo", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "head_dim": 192, "v_head_dim": 128}))
    assert "diff_v" in read_model(tmp_path).groups[0].features
