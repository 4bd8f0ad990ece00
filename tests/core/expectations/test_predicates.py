"""Predicates: what each form of a condition admits, and what two predicates have in common."""

import itertools

import pytest

from kvreg.core.devices import Device
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.predicates import When, Where, parse, written

H200 = Where("cuda", "sm_90", "h200", 139.8, "3.9.0", "2.13.0+cu130", "580.159.04")
VERSIONS = ("3.5.9", "3.6", "3.6.0", "3.6.1", "3.7", "3.8.0", "3.8.1", "3.9", "3.10.2", "4")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"platform": "cuda"}, True),
        ({"platform": ["rocm", "cuda"]}, True),
        ({"platform": "not cuda"}, False),
        ({"platform": ["not rocm", "not xpu"]}, True),
        ({"device": "h200", "arch": "sm_90"}, True),
        ({"device": "h200-nvl"}, False),
        ({"device": "h200/mig-1g.18gb"}, False),
        ({"memory_gib": "< 24"}, False),
        ({"memory_gib": ">= 139.8"}, True),
        ({"triton": "< 3.10"}, True),
        ({"torch": "== 2.13"}, True),
        ({"driver": ">= 580.159.4"}, True),
        ({"platform": "cuda", "triton": "< 3.8"}, False),
        ("everywhere", True),
    ],
)
def test_a_predicate_holds_where_every_condition_does(condition, holds):
    assert parse(condition).holds(H200) is holds


@pytest.mark.parametrize(
    ("bound", "admitted"),
    [
        ("< 3.8", ("3.5.9", "3.6", "3.6.0", "3.6.1", "3.7")),
        ("<= 3.8", ("3.5.9", "3.6", "3.6.0", "3.6.1", "3.7", "3.8.0", "3.8.1")),
        ("== 3.8", ("3.8.0", "3.8.1")),
        ("== 3.6.0", ("3.6", "3.6.0")),
        ("> 3.8", ("3.9", "3.10.2", "4")),
        (">= 3.6.1, < 3.9", ("3.6.1", "3.7", "3.8.0", "3.8.1")),
    ],
)
def test_a_bound_is_compared_at_its_own_precision(bound, admitted):
    when = parse({"triton": bound})

    assert tuple(version for version in VERSIONS if when.holds(Where(triton=version))) == admitted


def test_a_card_stands_for_its_slices_and_no_slice_for_its_card():
    a_slice = Where("cuda", "sm_90", "h200/mig-1g.18gb")

    assert parse({"device": "h200"}).holds(a_slice)
    assert not parse({"device": "not h200"}).holds(a_slice)
    assert not parse({"device": "h20"}).holds(a_slice)


def test_what_a_place_does_not_say_neither_holds_nor_is_excluded():
    when = parse({"platform": "xpu", "triton": "< 3.8"})
    place = Where(platform="xpu")

    assert (when.holds(place), when.may_hold(place), when.open_words(place)) == (False, True, ("triton",))
    assert not when.may_hold(Where(platform="cuda"))
    assert not parse({"platform": "not xpu"}).holds(Where())


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ({}, "everywhere"),
        ("always", "everywhere"),
        ({"platform": []}, "platform: required names"),
        ({"platform": ["xpu", "not cuda"]}, "platform: required names"),
        ({"memory_gib": "== 24"}, "memory_gib: required `< 24`"),
        ({"triton": "3.8"}, "triton: required bounds"),
        ({"triton": ">= 3.8, < 3.6"}, "required bounds that some value satisfies"),
    ],
)
def test_a_condition_that_cannot_be_read_is_named(condition, named):
    with pytest.raises(ValueError, match=r"required") as raised:
        parse(condition)

    assert named in str(raised.value)


BOUNDS = ("< 3.6", "< 3.8", "<= 3.8", "== 3.8", "== 3.8.1", ">= 3.6", ">= 3.6, < 3.9", "> 3.8", ">= 4")


@pytest.mark.parametrize(("one", "other"), list(itertools.product(BOUNDS, BOUNDS)))
def test_intervals_meet_and_contain_as_their_versions_do(one, other):
    first, second = parse({"triton": one}), parse({"triton": other})
    points = [f"{major}.{minor}.{patch}" for major in (3, 4, 5) for minor in range(5, 10) for patch in range(4)]
    in_first = {point for point in points if first.holds(Where(triton=point))}
    in_second = {point for point in points if second.holds(Where(triton=point))}

    assert first.bounds_meet(second) is bool(in_first & in_second)
    assert first.bounds_contain(second) is (in_second <= in_first)


def card(key, platform, arch, **more):
    return Device(key=key, name=key, platform=platform, arch=arch, compute_units=None, **more)


KNOWN = Known(
    (
        card("h200", "cuda", "sm_90", mig_profiles=("1g.18gb",)),
        card("h100", "cuda", "sm_90"),
        card("mi300x", "rocm", "gfx942"),
        card("arch:sm_90", "cuda", "sm_90"),
    ),
    ("triton-int4-decode@1",),
)


@pytest.mark.parametrize(
    ("one", "other", "meet", "contains"),
    [
        ({"platform": "cuda"}, {"device": "h200"}, True, True),
        ({"platform": "cuda"}, {"device": "mi300x"}, False, False),
        ({"device": "h200"}, {"platform": "cuda"}, True, False),
        ({"arch": "sm_90"}, {"platform": "cuda"}, True, True),
        ({"device": "h200"}, {"device": "h200/mig-1g.18gb"}, True, True),
        ({"device": "h200/mig-1g.18gb"}, {"device": "h200"}, True, False),
        ({"device": "not h200"}, {"device": "h200/mig-1g.18gb"}, False, False),
        ({"platform": "cuda", "triton": "< 3.8"}, {"device": "h200", "triton": ">= 3.8"}, False, False),
        ({"platform": "cuda"}, {"device": "h200", "triton": ">= 3.8"}, True, True),
        ("everywhere", {"platform": "rocm"}, True, True),
        ({"platform": "rocm"}, "everywhere", True, False),
    ],
)
def test_two_predicates_meet_only_where_some_card_satisfies_both(one, other, meet, contains):
    first, second = parse(one), parse(other)

    assert KNOWN.meet(first, second) is meet
    assert KNOWN.contains(first, second) is contains


@pytest.mark.parametrize(
    ("condition", "place", "possible"),
    [
        ({"device": "h200"}, Where(platform="cuda"), True),
        ({"device": "h200"}, Where(platform="rocm"), False),
        ({"platform": "cuda"}, Where(device="h200"), True),
        ({"platform": "rocm"}, Where(device="h200"), False),
        ({"device": "h200/mig-1g.18gb"}, Where(platform="cuda"), True),
        ({"device": "h200/mig-1g.18gb"}, Where("cuda", "sm_90", "h200"), False),
        ({"device": "h200"}, Where("cuda", "sm_90", "h200/mig-1g.18gb"), True),
        ({"triton": "< 3.8"}, Where(platform="cuda"), True),
        ({"triton": "< 3.8"}, Where(triton="3.9.0"), False),
    ],
)
def test_a_platform_alone_is_enough_to_exclude_the_cards_of_others(condition, place, possible):
    assert KNOWN.may_hold(parse(condition), place) is possible


@pytest.mark.parametrize(
    "value",
    [
        "everywhere",
        {"platform": "xpu"},
        {"platform": ["cuda", "rocm"], "memory_gib": ">= 16, < 24"},
        {"device": "not h200", "triton": "< 3.8", "driver": ">= 580"},
    ],
)
def test_a_predicate_that_is_written_reads_equal(value):
    assert written(parse(value)) == value
    assert parse(written(parse(value))) == parse(value)


def test_equal_conditions_read_equal_however_they_are_written():
    assert parse({"platform": ["xpu"], "triton": "<3.8"}) == parse({"triton": "<  3.8", "platform": "xpu"})
    assert str(parse({"triton": "< 3.8", "platform": "xpu"})) == "platform xpu, triton < 3.8"
    assert str(parse({"triton": "<3.8,>=3.6"})) == "triton < 3.8, >= 3.6"
    assert When() == parse("everywhere")
