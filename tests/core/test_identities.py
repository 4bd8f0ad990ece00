"""Identities are parsed at the door and print as they were read; requests take no word of no meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.core.asking import make_request, parse_mode
from kvreg.core.buckets import Bucket, bucket, stand_in
from kvreg.core.devices import Device
from kvreg.core.errors import UsageError
from kvreg.core.formats import default_format, fp8_type
from kvreg.core.index import Index
from kvreg.core.layouts import PLANAR, LayoutId
from kvreg.core.modes import Mode, rotation_block
from kvreg.core.registry import backends
from kvreg.core.requests import FEATURES, Op
from kvreg.core.resolve import resolve
from kvreg.core.variants import VariantId

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)
REVISIONS = st.integers(1, 10**6)


@given(NAMES, REVISIONS)
def test_a_variant_id_prints_as_it_is_read(name, version):
    assert VariantId.parse(f"{name}@{version}") == VariantId(name, version)
    assert str(VariantId(name, version)) == f"{name}@{version}"


@given(st.from_regex(r"[a-z]{1,12}", fullmatch=True), REVISIONS)
def test_a_layout_id_prints_as_it_is_read(family, revision):
    assert str(LayoutId.parse(f"{family}.{revision}")) == f"{family}.{revision}"


@given(st.text(max_size=20))
def test_any_other_text_is_a_usage_error_and_nothing_else(text):
    for parse in (VariantId.parse, LayoutId.parse, Bucket.parse):
        try:
            found = parse(text)
        except UsageError:
            continue
        assert str(found) == text


@pytest.mark.parametrize(
    "text", ["a@0", "a@01", "A@1", "a@", "@1", "a", "a@1\n", "planar.0", "planar.1\n", "b0-c1", "t0"]
)
def test_near_misses_of_identities_are_refused(text):
    for parse in (VariantId.parse, LayoutId.parse, Bucket.parse):
        with pytest.raises(UsageError):
            parse(text)


def test_every_device_key_resolves_to_its_own_device():
    for device in Index(backends(), None, shipped=None).devices():
        assert resolve(device.key).device == device
        assert Device.from_json(device.to_json()) == device


@given(st.sampled_from(Op), st.integers(1, 10**5), st.integers(1, 10**7))
def test_a_bucket_prints_as_it_is_read_and_covers_its_workload(op, batch, context):
    found = bucket(op, batch, context)

    assert Bucket.parse(str(found)) == found
    assert batch <= found.batch < 2 * batch
    if op is Op.DECODE:
        assert found.context >= context


@pytest.mark.parametrize("text", ["b1-c99999999999999999999", "b2147483648-c1", "t2147483648"])
def test_a_bucket_whose_numbers_no_int32_holds_is_none(text):
    with pytest.raises(UsageError, match="at most 2147483647"):
        Bucket.parse(text)


@given(st.sampled_from(Op), st.integers(1, 10**4), st.integers(1, 10**6))
def test_a_bucket_is_its_own_ceiling(op, batch, context):
    found = bucket(op, batch, context)

    again = bucket(op, found.batch, found.context or 1)

    assert again == found


@pytest.mark.parametrize(
    ("op", "batch", "context", "text"),
    [
        ("decode", 32, 8192, "b32-c8192"),
        ("decode", 33, 8193, "b64-c16384"),
        ("decode", 1, 1, "b1-c256"),
        ("decode", 1, 131072, "b1-c131072"),
        ("prefill", 2, 131072, "b2-c8192"),
        ("write", 32, 8192, "t32"),
    ],
)
def test_buckets_are_powers_of_two(op, batch, context, text):
    assert str(bucket(Op(op), batch, context)) == text


def test_a_write_is_counted_in_the_tokens_of_its_call():
    assert str(bucket(Op.WRITE, 32, 8192, tokens=8000)) == "t8192"


def test_the_smallest_larger_bucket_stands_in_and_a_smaller_one_never_does():
    known = [Bucket.parse(text) for text in ("b16-c8192", "b64-c16384", "b32-c16384", "b128-c8192")]

    assert stand_in(Bucket.parse("b32-c8192"), known) == Bucket.parse("b32-c16384")
    assert stand_in(Bucket.parse("b256-c256"), known) is None


@pytest.mark.parametrize(
    ("arch", "fp8", "qmax"),
    [("gfx942", "e4m3fnuz", 224), ("gfx950", "e4m3fn", 448), ("gfx90a", "e4m3fn", 448), ("sm_90", "e4m3fn", 448)],
)
@pytest.mark.parametrize("mode", [Mode.FP8_PER_TENSOR, Mode.FP8_PER_TOKEN_HEAD])
def test_only_gfx94x_stores_fnuz_and_its_maximum_is_224(mode, arch, fp8, qmax):
    device = Device("x", "X", "rocm", arch, None)

    form = default_format(mode, device, 96, PLANAR, "bf16")

    assert fp8_type(device) == fp8
    assert (form.storage, form.fp8, form.qmax) == (f"float8_{fp8}", fp8, qmax)


@pytest.mark.parametrize(("head_size", "block"), [(96, 32), (128, 128), (80, 16), (72, 8), (112, 16), (192, 64)])
def test_int4_states_its_rotation_block(head_size, block):
    form = default_format(Mode.INT4_PER_TOKEN_HEAD, Device("x", "X", "cuda", "sm_90", None), head_size, PLANAR, "bf16")

    assert form.rotation_block == block == rotation_block(head_size)
    assert (form.storage, form.qmax, form.nibble_order) == ("uint8", 15.0, "even_low")


@pytest.mark.parametrize(("dtype", "storage"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_mode_none_stores_the_models_dtype(dtype, storage):
    assert default_format(Mode.NONE, Device("x", "X", "cpu", "cpu", None), 64, PLANAR, dtype).storage == storage


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dtype": "float16"}, "dtype: required one of bf16, fp16, fp32, found 'float16'"),
        ({"features": ["windows"]}, "did you mean window?"),
        ({"accuracy": "exakt"}, "did you mean exact?"),
        ({"batch": 0}, "batch: required a whole number from 1, found 0"),
        ({"kv_heads": -8}, "kv_heads: required a whole number from 1, found -8"),
        ({"context": True}, "context: required a whole number from 1, found True"),
        ({"layout": "planar"}, "layout: required one of planar.1, planar.2, inline.1, found 'planar'; leave it out"),
    ],
)
def test_a_value_of_no_meaning_is_a_usage_error_that_names_the_valid_ones(asked, message):
    with pytest.raises(UsageError) as caught:
        make_request("h200", "none", 96, **asked)

    assert message in caught.value.message


@pytest.mark.parametrize("head_size", [0, -96, 96.0, "96"])
def test_a_head_size_is_a_whole_number(head_size):
    with pytest.raises(UsageError, match="head_size: required a whole number"):
        make_request("h200", "none", head_size)


def test_a_shortened_mode_is_a_usage_error_that_offers_the_whole_word():
    with pytest.raises(UsageError) as caught:
        parse_mode("int4")

    assert caught.value.candidates == ("int4_per_token_head",)


def test_features_without_a_mask_are_causal_and_say_so():
    request = make_request("h200", "none", 96, features=["window"])

    assert request.features == ("causal", "window")
    assert "features" in request.assumed


@given(st.permutations(FEATURES[:5]))
def test_features_are_a_set(words):
    assert make_request("h", "none", 96, features=[*words, *words]).features == FEATURES[:5]
