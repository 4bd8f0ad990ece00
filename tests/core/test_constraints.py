"""Every failed constraint is a reason that quotes both sides and says what to do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.core.asking import make_request
from kvreg.core.constraints import ANY_VARIANT, ORDER, failed, legal_neighbours, mode_failed, request_failed
from kvreg.core.devices import Device
from kvreg.core.modes import Mode
from kvreg.core.variants import Constraints

HOPPER = Device("h200", "H200", "cuda", "sm_90", 132, bf16_native=True, fp8_triton=("e4m3fn", "e5m2"))
AMPERE = replace(HOPPER, key="rtx3090", arch="sm_86", fp8_triton=("e5m2",))
TURING = replace(HOPPER, key="t4", arch="sm_75", bf16_native=False, fp8_triton=("e5m2",))


def reasons(device=HOPPER, constraints=None, **asked):
    asked = {"head_size": 128, **asked}
    head_size = asked.pop("head_size")
    request = make_request(device.key, "none", head_size, **asked)
    return request_failed(constraints or Constraints(), request, device)


def only(*args, **kwargs):
    (reason,) = reasons(*args, **kwargs)
    return reason


def test_a_plain_request_fails_nothing():
    assert reasons() == []


@pytest.mark.parametrize(
    ("head_size", "below", "above"),
    [(97, 96, 104), (100, 96, 104), (30, 32, 40), (7, 32, 40), (513, 504, 512), (516, 504, 512), (4096, 504, 512)],
)
def test_an_illegal_head_size_is_refused_with_both_neighbours(head_size, below, above):
    reason = only(head_size=head_size)

    assert (reason.code, reason.field) == ("head_size", "head_size")
    assert reason.required == "a multiple of 8 from 32 to 512"
    assert reason.found == str(head_size)
    assert reason.remedy == (
        f"the nearest are --head-size {below} and {above}, should {head_size} be mistyped;"
        " a model that has it needs another mode or device"
    )


@given(st.integers(1, 5000))
def test_head_sizes_are_legal_exactly_from_32_to_512_in_steps_of_8(head_size):
    legal = head_size in range(32, 513, 8)

    assert (reasons(head_size=head_size) == []) is legal


@given(st.integers(1, 3000), st.integers(1, 64), st.integers(1, 40), st.integers(1, 40))
def test_neighbours_are_legal_and_none_is_nearer(value, least, steps, step):
    most = least + steps * step
    legal = range(least, most + 1, step)

    below, above = legal_neighbours(value, least, most, step)

    assert below in legal
    assert above in legal
    assert min(abs(value - each) for each in legal) == min(abs(value - below), abs(value - above))
    if least <= value <= most and value not in legal:
        assert (above - below, below < value < above) == (step, True)


@pytest.mark.parametrize(("page", "remedy"), [(20, "16 and 32"), (8, "16 and 32"), (560, "528 and 544")])
def test_an_illegal_page_is_refused_with_both_neighbours(page, remedy):
    reason = only(page=page)

    assert (reason.code, reason.found) == ("page", str(page))
    assert remedy in reason.remedy


@pytest.mark.parametrize("page", [16, 528, 544])
def test_pages_of_multiples_of_16_up_to_544_are_legal(page):
    assert reasons(page=page) == []


def test_query_heads_that_kv_heads_do_not_divide_are_refused_with_both_neighbours():
    reason = only(q_heads=30, kv_heads=8)

    assert (reason.code, reason.required, reason.found) == ("q_heads", "a multiple of the 8 KV heads", "30")
    assert reason.remedy == "the nearest are --q-heads 24 and 32"


def test_fewer_query_than_kv_heads_offers_no_zero():
    assert only(q_heads=4, kv_heads=8).remedy == "the nearest are --q-heads 8"


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (28, 4), (71, 1), (24, 1)])
def test_any_whole_group_is_legal(heads, kv_heads):
    assert reasons(q_heads=heads, kv_heads=kv_heads) == []


def test_a_group_larger_than_the_variant_takes_is_refused():
    reason = only(constraints=Constraints(group_max=8), q_heads=16, kv_heads=1)

    assert (reason.code, reason.found) == ("group", "16")
    assert "at most 8" in reason.required


def test_a_dtype_that_the_variant_does_not_take_is_refused():
    reason = only(dtype="fp32")

    assert (reason.code, reason.required, reason.found) == ("dtype", "bf16 or fp16", "fp32")


def test_bf16_on_a_card_without_a_bf16_unit_is_refused_with_fp16_as_the_remedy():
    reason = only(TURING)

    assert (reason.code, reason.found) == ("dtype", "bf16")
    assert "sm_75" in reason.required
    assert "--dtype fp16" in reason.remedy
    assert reasons(TURING, dtype="fp16") == []


def test_an_unknown_bf16_unit_refuses_nothing():
    assert reasons(replace(TURING, bf16_native=None)) == []


def test_a_layout_that_the_variant_does_not_read_is_refused():
    reason = only(layout="planar.7")

    assert (reason.code, reason.required, reason.found) == ("layout", "planar.1 or inline.1", "planar.7")


def test_the_default_layout_is_judged_too():
    assert only(constraints=Constraints(layouts=("inline.1",))).found == "planar.1"


def test_planar_2_is_served_by_int4_alone():
    reason = only(layout="planar.2")
    asked = make_request("h200", "int4_per_token_head", 128, layout="planar.2")

    assert (reason.code, reason.required, reason.found) == ("layout", "planar.1 or inline.1", "planar.2")
    assert reason.remedy == "take --layout planar.1"
    assert request_failed(Constraints(), asked, HOPPER) == []


def test_the_default_layout_is_that_of_the_mode():
    asked = make_request("h200", "int4_per_token_head", 128)
    (reason,) = request_failed(Constraints(layouts=("planar.1", "inline.1")), asked, HOPPER)

    assert (reason.required, reason.found) == ("planar.1 or inline.1", "planar.2")


@pytest.mark.parametrize(
    ("declared", "found"), [(("planar.2",), "a variant of planar.2 alone"), ((), "a variant of no layout")]
)
def test_a_variant_of_no_layout_of_its_mode_is_refused_and_its_backend_is_told(declared, found):
    reason = only(constraints=Constraints(layouts=declared))

    assert (reason.code, reason.required) == ("layout", "planar.1 or inline.1")
    assert reason.found.startswith(found)
    assert reason.remedy == "its backend must declare a layout that the mode has"


def test_each_feature_that_is_not_declared_is_a_reason_of_its_own():
    found = reasons(features=["causal", "window", "sinks"])

    assert [(reason.code, reason.found) for reason in found] == [("feature", "window"), ("feature", "sinks")]


def test_an_arch_that_the_variant_is_not_written_for_is_refused():
    reason = only(AMPERE, Constraints(archs=("sm_90", "sm_100")))

    assert (reason.code, reason.required, reason.found) == ("arch", "sm_90 or sm_100", "sm_86")


def test_too_low_a_compute_capability_is_refused():
    reason = only(TURING, Constraints(min_capability=(8, 0)), dtype="fp16")

    assert (reason.code, reason.required, reason.found) == ("capability", "at least 8.0", "7.5 (sm_75)")


def test_a_compute_capability_is_no_matter_of_other_vendors():
    amd = replace(HOPPER, platform="rocm", arch="gfx942")

    assert reasons(amd, Constraints(min_capability=(8, 0))) == []


def test_a_missing_fp8_type_names_the_arch_the_type_and_int8():
    reason = only(AMPERE, Constraints(needs_fp8="e4m3fn"))

    assert reason.code == "fp8_type"
    assert reason.required == "e4m3fn on sm_86"
    assert reason.found == "only e5m2"
    assert "int8_per_token_head" in reason.remedy


def test_fp8_types_that_nobody_listed_refuse_nothing():
    assert reasons(replace(AMPERE, fp8_triton=()), Constraints(needs_fp8="e4m3fn")) == []


def test_a_mode_is_refused_for_its_fp8_type_before_any_variant_exists():
    request = make_request("rtx3090", "fp8_per_token_head", 128)

    assert [each.code for each in mode_failed(Mode.FP8_PER_TOKEN_HEAD, request, AMPERE)] == ["fp8_type"]
    assert mode_failed(Mode.INT8_PER_TOKEN_HEAD, request, AMPERE) == []


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("fp8_per_tensor", ["fp8_type"]),
        ("fp8_per_token_head", ["fp8_type"]),
        ("int8_per_token_head", []),
        ("none", []),
    ],
)
def test_an_fp8_variant_needs_the_fp8_type_of_the_arch_whatever_it_declares(workshop, mode, codes):
    variant = workshop.variant("toy-decode", "decode", mode)
    request = make_request("rtx3090", mode, 128)

    assert [each.code for each in failed(variant, request, AMPERE)] == codes
    assert failed(variant, request, HOPPER) == []


def test_gfx94x_needs_e4m3fnuz_where_others_need_e4m3fn(workshop):
    variant = workshop.variant("toy-decode", "decode", "fp8_per_token_head")
    request = make_request("mi300x", "fp8_per_token_head", 128)
    mi300x = replace(HOPPER, key="mi300x", platform="rocm", arch="gfx942", fp8_triton=("e4m3fnuz",))

    assert failed(variant, request, mi300x) == []
    (reason,) = failed(variant, request, replace(mi300x, arch="gfx950"))
    assert (reason.required, reason.found) == ("e4m3fn on gfx950", "only e4m3fnuz")


def test_reasons_come_gravest_first():
    found = [each.code for each in reasons(TURING, head_size=97, page=20, q_heads=30)]

    assert found == sorted(found, key=ORDER.index)
    assert found == ["head_size", "q_heads", "dtype", "page"]


def test_what_every_variant_requires_is_no_more_than_what_any_does():
    assert (ANY_VARIANT.head_min, ANY_VARIANT.head_max, ANY_VARIANT.head_step) == (32, 512, 8)
