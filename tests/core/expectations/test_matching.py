"""Which ids a pattern takes, and that an index of many ids gives what each pattern by itself does."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvreg.core.expectations.entries import Expectation
from kvreg.core.expectations.matching import EntryIndex, IdIndex
from kvreg.core.expectations.node_ids import Pattern, escaped, split
from kvreg.core.expectations.predicates import When
from kvreg.core.expectations.vocabulary import Expect

IDS = [
    "tests/a.py::test_x",
    "tests/a.py::test_x_more[1]",
    "tests/a.py::test_y[int4-16]",
    "tests/a.py::test_y[int4-32]",
    "tests/a.py::test_y[int8-16]",
    "tests/a.py::test_y[a[0]-b*]",
    "tests/a.py::test_y[a[0]-bc]",
    "tests/a.py::test_y[]",
    "tests/a.py::TestT::test_y[int4-16]",
    "tests[old]/a.py::test_y[int4-16]",
    "tests/b.py::test_y[int4-16]",
]


def of_a(*tails):
    return [f"tests/a.py::test_y{tail}" for tail in tails]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("tests/a.py::test_x", ["tests/a.py::test_x"]),
        ("tests/a.py::test_x[*]", ["tests/a.py::test_x"]),
        ("tests/a.py::test_y", []),
        ("tests/a.py::test_y[int4-16]", of_a("[int4-16]")),
        ("tests/a.py::test_y[int4-*]", of_a("[int4-16]", "[int4-32]")),
        ("tests/a.py::test_y[*-16]", of_a("[int4-16]", "[int8-16]")),
        ("tests/a.py::test_y[int?-16]", of_a("[int4-16]", "[int8-16]")),
        ("tests/a.py::test_y[a[0]-b*]", of_a("[a[0]-b*]", "[a[0]-bc]")),
        (r"tests/a.py::test_y[a[0]-b\*]", of_a("[a[0]-b*]")),
        ("tests/a.py::test_y[*]", sorted(each for each in IDS if each.startswith("tests/a.py::test_y["))),
        ("tests/a.py::test_*", []),
        ("tests/a.*::test_y[int4-16]", []),
        ("tests[old]/a.py::test_y[int4-16]", ["tests[old]/a.py::test_y[int4-16]"]),
    ],
)
def test_a_glob_reaches_within_the_parameters_of_one_test_only(text, taken):
    pattern = Pattern(text)

    assert IdIndex(IDS).hits(pattern) == taken
    assert sorted(node_id for node_id in IDS if pattern.takes(node_id)) == sorted(taken)


@pytest.mark.parametrize("node_id", [*IDS, "a.py::t[what?]", "a.py::t[back\\slash]", "a.py::t[x::y[z]]"])
def test_an_id_escaped_takes_itself_alone(node_id):
    base, tail = split(node_id)
    pattern = Pattern(base + escaped(tail))

    assert IdIndex([*IDS, node_id]).hits(pattern) == [node_id]
    assert not pattern.is_glob


@pytest.mark.parametrize(
    ("one", "other", "contains"),
    [
        ("a.py::t[*]", "a.py::t[b]", True),
        ("a.py::t[*]", "a.py::t[b*]", True),
        ("a.py::t[*]", "a.py::t", True),
        ("a.py::t[b*]", "a.py::t[bc-*]", True),
        ("a.py::t[b*]", "a.py::t[*]", False),
        ("a.py::t[b?]", "a.py::t[b*]", False),
        (r"a.py::t[b\**]", "a.py::t[b*c]", False),
        ("a.py::t[*]", "a.py::u[*]", False),
        ("a.py::t[b]", "a.py::t[b]", True),
    ],
)
def test_a_pattern_contains_another_only_where_it_takes_all_that_the_other_can(one, other, contains):
    assert Pattern(one).contains(Pattern(other)) is contains


def test_an_id_has_the_entries_that_take_it(tmp_path):
    texts = ["tests/a.py::test_y[int4-*]", "tests/a.py::test_y[int4-16]", "tests/b.py::test_y[int4-16]"]
    entries = [Expectation(Pattern(text), When(), Expect.XFAIL, tmp_path / "e.yaml", 3) for text in texts]

    index = EntryIndex(entries)

    assert [each.test for each in index.of("tests/a.py::test_y[int4-16]")] == [texts[1], texts[0]]
    assert [each.test for each in index.of("tests/a.py::test_y[int4-32]")] == [texts[0]]
    assert index.of("tests/a.py::test_y[int8-16]") == []


def meaning(tail):
    """Return what a glob means, word for word: `*` any text, `?` one character, `\\*` and `\\?` themselves."""
    words = re.findall(r"\\[*?]|.", tail, re.DOTALL)
    return "".join({"*": ".*", "?": "."}.get(word, re.escape(word[-1])) for word in words)


@given(st.text("ab*?\\[]!^-\n", max_size=8), st.text("ab*?\\[]!^-\n", max_size=8))
@example("a**?*b", "a\nb")
@example("[!a]*", "b]")
@example(r"\\*\*", r"\\*")
def test_a_glob_takes_what_its_signs_mean_and_nothing_else(inside, tail):
    pattern = Pattern(f"a.py::t[{inside}]")

    for other in (f"[{tail}]", f"[{inside}]"):
        assert pattern.takes_tail(other) == (re.fullmatch(meaning(pattern.tail), other, re.DOTALL) is not None)


@pytest.mark.parametrize("word", ["*", "*a", "*?"])
def test_a_glob_of_many_stars_is_answered_at_once(word):
    assert not Pattern(f"a.py::t[{word * 40}zz]").takes_tail("[" + "a" * 2000 + "]")
