"""Lists of other tools: what is written reads back as the same entries, and what cannot be written is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvreg.ci.lists import exporting, pytorch, skip_lists
from kvreg.ci.lists.drafts import drafts
from kvreg.ci.lists.exclusions import Place
from kvreg.ci.lists.guesses import Guesser
from kvreg.core.expectations import writing
from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.files import read
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.node_ids import Pattern
from kvreg.core.expectations.predicates import Where, parse
from kvreg.core.expectations.vocabulary import Expect, Kind
from kvreg.core.index import devices

GOLDEN = Path(__file__).parents[2] / "golden" / "lists"
B580 = Where("xpu", "bmg", "b580")


def entry(test, when="everywhere", expect="skip", **more):
    return Expectation(Pattern(test), parse(when), Expect(expect), Path(), 0, **more)


def said(entries):
    """What the formats can hold of entries."""
    return [(each.test, each.reason, each.issue) for each in sorted(entries, key=lambda each: each.test)]


MIXED = (
    entry("tests/a.py::t[a b-[0]]", reason="wrong", issue="https://x.org/1"),
    entry("tests/a.py::t[*]"),
    entry("tests/a.py::u[int4-*]", {"platform": "xpu"}, reason="slow: very", issue="o/r#2"),
    entry("tests/a.py::u[*-16]", {"arch": "bmg"}, reason="other"),
    entry("tests/a.py::v", {"platform": "cuda"}),
    entry("tests/a.py::w", {"platform": "xpu", "triton": "< 3.8"}),
)


def test_arguments_read_back_as_the_same_entries(tmp_path):
    found = exporting.arguments([each for each in MIXED if each.pattern.tail not in ("[int4-*]", "[*-16]")], B580)
    (tmp_path / "args.txt").write_text(found.text)

    again = drafts(skip_lists.read_arguments(tmp_path / "args.txt", Place("", parse("everywhere"))))

    assert [each.test for each in again.entries] == ["tests/a.py::t[*]", "tests/a.py::t[a b-[0]]"]
    assert [(each.test, why) for each, why in found.left_out] == [
        ("tests/a.py::w", "depends on triton, which is not said")
    ]


def test_a_glob_is_written_as_a_prefix_where_pytest_can_read_it_so():
    found = exporting.arguments(MIXED, B580)

    assert "--deselect=tests/a.py::u[int4-\n" in found.text
    assert ("tests/a.py::u[*-16]", "a wildcard within the parameters: --ids tells which ones it takes") in [
        (each.test, why) for each, why in found.left_out
    ]


def test_with_ids_a_pattern_is_written_as_what_it_takes():
    ids = IdIndex(["tests/a.py::u[int4-16]", "tests/a.py::u[int8-16]", "tests/a.py::u[int4-32]"])

    found = exporting.arguments(MIXED[2:4], B580, ids)

    assert found.text.split() == [
        *("--deselect=tests/a.py::u[int4-16]", "--deselect=tests/a.py::u[int4-32]"),
        *("--deselect=tests/a.py::u[int4-16]", "--deselect=tests/a.py::u[int8-16]"),
    ]


def test_what_the_place_says_decides(tmp_path):
    triton = Where("xpu", "bmg", "b580", triton="3.7")

    assert "tests/a.py::w" in exporting.arguments(MIXED, triton).text
    assert "tests/a.py::w" not in exporting.arguments(MIXED, Where("xpu", "bmg", "b580", triton="3.8")).text


@pytest.mark.parametrize("folder", ["default", "xe2"])
def test_a_skip_list_reads_back_as_the_same_entries(tmp_path, folder):
    guesser = Guesser(devices())
    before = drafts(skip_lists.read_intel(GOLDEN / "skiplist" / folder, guesser)).entries
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "out.txt").write_text(exporting.intel(before, B580).text)

    after = drafts(skip_lists.read_intel(tmp_path / folder, guesser)).entries

    assert said(after) == said(before) != []


def test_a_glob_in_a_skip_list_is_an_expression_that_takes_the_same(tmp_path):
    ids = IdIndex(["tests/a.py::u[x-16]", "tests/a.py::u[x-16]y", "tests/aXpy::u[x-16]", "tests/a.py::u[16-x]"])
    (tmp_path / "bmg").mkdir()
    (tmp_path / "bmg" / "out.txt").write_text(exporting.intel([entry("tests/a.py::u[*-16]")], B580).text)

    after = drafts(skip_lists.read_intel(tmp_path / "bmg", Guesser(devices())), ids=ids)

    assert [each.test for each in after.entries] == ["tests/a.py::u[x-16]"]


def test_many_stars_in_a_row_are_one_in_an_expression():
    text = exporting.intel([entry(r"tests/a.py::u[**?*-\*\?***]")], B580).text

    assert text == r"tests/a\.py::u\[..*\-\*\?.*\]$" + f"{skip_lists.REGEXP}\n"


@pytest.mark.parametrize("kind", ["skips", "xfails"])
def test_array_api_files_read_back_as_the_same_entries(tmp_path, kind):
    place = Place("cpu", parse({"platform": "cpu"}))
    before = drafts(skip_lists.read_array_api(GOLDEN / f"array-api-{kind}.txt", place)).entries
    expect = Expect.XFAIL if kind == "xfails" else Expect.SKIP
    found = exporting.array_api([*before, entry("a.py::t", expect="flaky")], Where("cpu", "cpu", "cpu"), expect)
    (tmp_path / f"{kind}.txt").write_text(found.text)

    after = drafts(skip_lists.read_array_api(tmp_path / f"{kind}.txt", place)).entries

    assert (said(after), {each.expect for each in after}) == (said(before), {expect})
    assert [why for _, why in found.left_out] == ["no file is for flaky"]


def test_disabled_tests_are_written_as_they_were_as_far_as_words_are_known(tmp_path):
    original = json.loads((GOLDEN / "disabled.json").read_text())
    found = exporting.disabled(drafts(pytorch.read_disabled(GOLDEN / "disabled.json")).entries)

    written = json.loads(found.text)

    assert len(written) == 5
    for name, (number, url, words) in written.items():
        assert (number, url) == tuple(original[name][:2])
        assert words == [word for word in original[name][2] if word == "rocm"]
    (tmp_path / "again.json").write_text(found.text)
    assert exporting.disabled(drafts(pytorch.read_disabled(tmp_path / "again.json")).entries).text == found.text


def test_disabled_tests_leave_out_what_they_have_no_word_for():
    found = exporting.disabled(
        [entry("a.py::C::t[*]", {"device": "mi300x"}), entry("a.py::t"), entry("a.py::C::t[1]")]
    )

    assert json.loads(found.text) == {}
    assert [why for _, why in found.left_out] == [
        "no word for device mi300x",
        "no test of a class with all of its parameters",
        "no test of a class with all of its parameters",
    ]


@pytest.mark.parametrize(
    "reason",
    [
        "plain",
        "a: b",
        "# no comment",
        "'quoted'",
        "- dash",
        "null",
        "yes",
        "3.10",
        "tab\there",
        "é",
        "{a",
        "x #y",
        " ",
    ],
)
def test_a_list_that_is_written_reads_back_equal(tmp_path, reason):
    path = tmp_path / "list.yaml"
    before = entry(
        "a.py::t[x, y: {z}]",
        {"platform": ["cuda", "rocm"], "device": "not h200", "triton": ">= 3.6, < 3.8"},
        kind=Kind.OOM,
        reason=reason,
        issue="o/r#1",
        owner="me",
        invalidates=("triton-int4-decode@1",),
        evidence={"seen, here": "14.2 GiB: {all}"},
    )

    path.write_text(writing.text([before], heading=["Above."]))

    (after,) = read(path)
    assert writing.text([after]) == writing.text([before]) if reason.strip() else after.reason == ""
    assert (after.test, after.when, after.reason) == (before.test, before.when, reason.strip())
    assert after.evidence == before.evidence
