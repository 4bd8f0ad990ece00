"""Reading a list: what an entry may say, each fault with its line, and what is no list at all."""

from datetime import date

import pytest

from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read, survey
from kvreg.core.expectations.vocabulary import Expect, Kind

WHOLE = """\
schema: 1
expectations:
# Seen first in the nightly run.
- test: tests/a.py::test_y[int4-*]
  when: {platform: xpu, triton: ">= 3.6, < 3.10"}
  expect: skip
  kind: oom
  reason: >
    The pool of the kernel needs 14 GiB,
    and the card has 12.
  issue: https://example.org/issues/7
  owner: kernels
  added: 2026-11-01
  review_by: 2026-12-01
  invalidates: [triton-int4-decode@1]
  hits: 3
  evidence: {seen: 14.2 GiB, seeds: 3}
"""


@pytest.fixture
def listed(tmp_path):
    def write(text):
        path = tmp_path / "expectations.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def entry(**changed):
    """Return a list of one entry, with fields changed, added or (None) left out."""
    plain = {
        "test": "a.py::t",
        "when": "everywhere",
        "expect": "xfail",
        "reason": "wrong",
        "issue": "o/r#1",
        "owner": "me",
        "added": "2026-11-01",
        "review_by": "2026-12-01",
    }
    fields = {key: value for key, value in {**plain, **changed}.items() if value is not None}
    return "schema: 1\nexpectations:\n-\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items())


def test_an_entry_is_read_with_its_place(listed):
    path = listed(WHOLE)

    (only,) = read(path)

    assert only.place == f"{path}:4"
    assert (only.expect, only.kind, only.hits) == (Expect.SKIP, Kind.OOM, 3)
    assert only.reason == "The pool of the kernel needs 14 GiB, and the card has 12."
    assert (only.added, only.review_by) == (date(2026, 11, 1), date(2026, 12, 1))
    assert only.invalidates == ("triton-int4-decode@1",)
    assert only.evidence == {"seen": "14.2 GiB", "seeds": "3"}
    assert str(only.when) == "platform xpu, triton >= 3.6, < 3.10"
    assert survey(path).last_lines == {4: 17}


def test_an_id_outlives_every_edit_but_of_test_and_place(listed):
    (before,) = read(listed(entry()))
    (same,) = read(listed("# moved\n" + entry(reason="other", owner="you", review_by="2027-01-01")))
    (other,) = read(listed(entry(when="{platform: xpu}")))

    assert before.id == same.id != other.id


def test_an_entry_expires_after_its_day_of_review(listed):
    (only,) = read(listed(entry()))

    assert not only.expired(date(2026, 12, 1))
    assert only.expired(date(2026, 12, 2))


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"test": None}, "bad_entry", "test: required, found none"),
        ({"test": "a.py"}, "bad_entry", "test: required a node id (file::test), found 'a.py'"),
        ({"test": "a*.py::t"}, "bad_entry", "only inside the parameter tail"),
        ({"test": "a.py::t_*[b]"}, "bad_entry", "only inside the parameter tail"),
        ({"test": "'a.py::t[b*'"}, "bad_entry", "a tail that ends with ]"),
        ({"when": None}, "bad_entry", "when: required, found none"),
        ({"when": "{platfrom: xpu}"}, "unknown_word", "did you mean platform?"),
        ({"when": "{triton: new}"}, "bad_entry", "triton: required bounds"),
        ({"when": "{platform: [a, not b]}"}, "bad_entry", "`not NAME` for all of them"),
        ({"when": "{}"}, "bad_entry", "write `when: everywhere`"),
        ({"when": "[xpu]"}, "bad_entry", "everywhere or conditions on platform"),
        ({"when": "{platform: {a: b}}"}, "bad_entry", "when: "),
        ({"expect": "xfial"}, "unknown_word", "did you mean xfail?"),
        ({"expect": "skip", "kind": "hung"}, "unknown_word", "did you mean hang?"),
        ({"kind": "oom"}, "bad_entry", "only of a skip"),
        ({"expect": "skip"}, "no_kind", "required of a skip"),
        ({"reasn": "x"}, "unknown_word", "did you mean reason?"),
        ({"reason": None}, "no_reason", "reason: required, found none"),
        ({"issue": None}, "no_issue", "issue: required, found none"),
        ({"issue": "later"}, "no_issue", "found 'later'"),
        ({"owner": None}, "no_owner", "owner: required, found none"),
        ({"added": "2026-02-30"}, "no_added", "found '2026-02-30'"),
        ({"review_by": "1764547200"}, "no_review_by", "a date (YYYY-MM-DD)"),
        ({"invalidates": "[int4]"}, "bad_entry", "name@version"),
        ({"hits": "0"}, "bad_entry", "hits: required a count"),
        ({"evidence": "[a]"}, "bad_entry", "a mapping of texts"),
    ],
)
def test_each_fault_of_an_entry_is_named_with_its_line(listed, changed, code, words):
    text = entry(**changed)

    (fault,) = survey(listed(text)).faults

    assert (fault.code, words in fault.text) == (code, True), fault
    field = list(changed)[-1] if "kind" not in fault.code else "nothing"
    stands = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(f"  {field}:")]
    assert fault.line == (stands[0] if stands else 4)


@pytest.mark.parametrize("changed", [{"reason": None}, {"issue": "later"}, {"owner": None}, {"review_by": None}])
def test_a_list_that_lacks_what_only_people_need_can_be_used(listed, changed):
    assert len(read(listed(entry(**changed)))) == 1


@pytest.mark.parametrize("changed", [{"expect": "xfial"}, {"when": "{platfrom: xpu}"}, {"reasn": "x"}])
def test_a_list_with_a_word_that_is_not_known_is_refused_by_those_who_act_on_it(listed, changed):
    path = listed(entry(**changed))

    with pytest.raises(BadFile, match="did you mean") as raised:
        read(path)

    assert str(raised.value).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no mapping"),
        ("- a\n", "no mapping"),
        ("schema: 1\n", "the keys schema"),
        ("schema: 2\nexpectations: []\n", "schema '2'"),
        ("schema: 1\nexpectations: {a: b}\n", "no list of mappings"),
        ("schema: 1\nexpectations: [a]\n", "no list of mappings"),
        ("schema: 1\nexpectations: []\nmore: 1\n", "more"),
        ("a: [\n", "valid YAML"),
        ("a: 1\na: 2\n", "'a' twice"),
        ("a: *b\n", "anchor"),
        ("a: 1\n---\nb: 2\n", "a second one"),
        ("[1]: 2\n", "a text as key"),
        ("[" * 3000, "required"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(listed, text, words):
    with pytest.raises(BadFile) as raised:
        survey(listed(text))

    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadFile, match="No such file"):
        survey(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text", ["schema: 1\nexpectations: []\n", "schema: 1\nexpectations:\n", "\ufeffschema: 1\nexpectations: []\n"]
)
def test_an_empty_list_is_a_list(listed, text):
    assert read(listed(text)) == ()


def test_an_alias_repeats_a_value(listed):
    text = entry(reason="&why it is wrong") + entry(test="a.py::u", reason="*why").partition("expectations:\n")[2]

    assert [each.reason for each in read(listed(text))] == ["it is wrong", "it is wrong"]
