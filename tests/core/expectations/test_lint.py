"""The check on its own: pairs of entries, sure successors, and its time for a long list."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import date

import pytest

from kvreg.core.devices import Device
from kvreg.core.expectations.files import survey_text
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.lint import UNDECLARED_HITS, check
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.node_ids import Pattern
from kvreg.core.expectations.successors import Successors

DAY = date(2026, 11, 29)
KNOWN = Known(
    tuple(
        Device(key=key, name=key, platform=platform, arch=arch, compute_units=None)
        for key, platform, arch in (("h200", "cuda", "sm_90"), ("b580", "xpu", "bmg"), ("b60", "xpu", "bmg"))
    )
)


def survey_of(tmp_path, *entries):
    """Survey a list of (test, when) pairs with everything else in order."""
    rest = "expect: xfail, reason: r, issue: o/r#1, owner: me, added: 2026-11-01, review_by: 2026-12-01"
    lines = [f'- {{test: "{test}", when: {when}, {rest}}}' for test, when in entries]
    return survey_text("schema: 1\nexpectations:\n" + "\n".join(lines) + "\n", tmp_path / "list.yaml")


def codes(findings):
    return [(each.code, each.line) for each in findings]


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([("a.py::t[*]", "everywhere"), ("a.py::t[x]", "{platform: xpu}")], [("shadowed", 4)]),
        ([("a.py::t[*]", "{platform: xpu}"), ("a.py::t[x]", "everywhere")], [("overlap", 4)]),
        ([("a.py::t[*]", "{platform: cuda}"), ("a.py::t[x]", "{platform: xpu}")], []),
        ([("a.py::t[x]", "{device: b580}"), ("a.py::t[x]", "{device: b60}")], []),
        ([("a.py::t[x]", "{arch: bmg}"), ("a.py::t[x]", "{platform: xpu}")], [("shadowed", 4)]),
        ([("a.py::t[x]", "{platform: xpu}"), ("a.py::t[x]", "{platform: xpu}")], [("duplicate", 4)]),
        ([("a.py::t[x]", '{triton: "< 3.8"}'), ("a.py::t[x]", '{triton: ">= 3.8"}')], []),
        ([("a.py::t[x]", '{triton: "< 3.8"}'), ("a.py::t[x]", '{triton: ">= 3.7"}')], [("overlap", 4)]),
        ([("a.py::u", "everywhere"), ("a.py::t[x]", "everywhere")], [("order", 4)]),
    ],
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_two_entries_are_compared_by_what_they_take_and_where(tmp_path, entries, found, with_ids):
    ids = IdIndex(["a.py::t[x]", "a.py::t[y]", "a.py::u"]) if with_ids else None

    assert codes(check(survey_of(tmp_path, *entries), KNOWN, DAY, ids)) == found


@pytest.mark.parametrize(("count", "found"), [(UNDECLARED_HITS, []), (UNDECLARED_HITS + 1, [("wide", 3)])])
def test_a_glob_that_does_not_say_how_many_ids_it_takes_may_take_a_few(tmp_path, count, found):
    ids = IdIndex(f"a.py::t[{number}]" for number in range(count))

    assert codes(check(survey_of(tmp_path, ("a.py::t[*]", "everywhere")), KNOWN, DAY, ids)) == found


@pytest.mark.parametrize(
    ("dead", "live", "sure"),
    [
        ("a.py::t[4-16]", ["a.py::t[False-4-16]", "a.py::t[False-4-32]"], "a.py::t[False-4-16]"),
        ("a.py::t[4-16]", ["a.py::t[4-16-new]"], "a.py::t[4-16-new]"),
        ("a.py::t[4-16]", ["a.py::t[False-4-16]", "a.py::t[True-4-16]"], None),
        ("a.py::t[4-16]", ["a.py::t[False-4-16]", "a.py::t[8-16]"], None),
        ("a.py::t[4-16]", ["a.py::t[16]"], None),
        ("a.py::t[4-16]", ["a.py::t[8-16]"], None),
        ("a.py::t[4-16]", ["a.py::t"], None),
        ("a.py::t", ["a.py::t[4]"], None),
        ("old/a.py::C::t[4]", ["new/a.py::C::t[4]"], "new/a.py::C::t[4]"),
        ("old/a.py::t", ["new/a.py::t", "newer/a.py::t"], None),
        ("old/a.py::t", ["new/b.py::t"], None),
        ("old/a.py::t", ["new/a.py::t", "old/a.py::u"], None),
        ("__main__::C::t[*]", ["x/b.py::C::t"], "x/b.py::C::t[*]"),
        ("__main__::C::t[*]", ["x/b.py::C::t", "x/c.py::C::t"], None),
        ("a.py::t[*-16]", ["a.py::t[16-False]"], None),
    ],
)
def test_a_successor_is_sure_only_where_no_other_id_can_have_come_from_the_dead_one(dead, live, sure):
    near = Successors(IdIndex([*live, "z.py::test_unlike"])).of(Pattern(dead))

    assert near.sure == sure
    if dead != "a.py::t[*-16]":
        assert set(near.live) & {*live, "a.py::t[*]", "x/b.py::C::t[*]"}


@pytest.mark.parametrize(
    ("dead", "proposed"),
    [
        ("a.py::test_atn[4-16]", ["a.py::test_attn[4-16]"]),
        ("a.py::C::test_attend_rwos[4-16]", ["a.py::C::test_attend_rows[4-16]"]),
        ("a.py::test_atn[4-1?]", ["a.py::test_attn[4-1?]"]),
        ("a.py::test_atn[5-16]", ["a.py::test_attn[*]"]),
        ("a.py::test_atn", ["a.py::test_attn[*]"]),
    ],
)
def test_a_misspelt_name_is_offered_with_the_parameters_that_it_has(dead, proposed):
    live = ["a.py::test_attn[4-16]", "a.py::test_attn[4-32]", "a.py::C::test_attend_rows[4-16]"]
    live.append("a.py::C::test_attend_rows[8-16]")

    assert list(Successors(IdIndex(live)).of(Pattern(dead)).live)[:1] == proposed


def test_five_thousand_entries_are_checked_against_fifty_thousand_ids_in_three_seconds(tmp_path):
    """Processor time of reading, checking and proposing; one test has a tenth of all ids, one entry in ten is dead."""
    chance = random.Random(0)
    ids = [
        f"tests/k/test_{(number % 10 and number) % 397 % 40}.py::test_{(number % 10 and number) % 397}"
        f"[bf{number % 5}-xpu:{number % 2}-heads{number % 7}-{number}]"
        for number in range(50_000)
    ]
    entries = []
    for number, node_id in enumerate(chance.sample(ids, 5000)):
        base, _, tail = node_id.partition("[")
        changed = {1: f"[{tail.rpartition('-')[0]}-*]", 2: f"[{tail.partition('-')[2]}"}.get(number % 10, f"[{tail}")
        entries.append((base + changed, '{platform: xpu, device: [b580, b60], memory_gib: "< 24"}'))
    entries.sort()

    began = time.process_time()
    findings = check(survey_of(tmp_path, *entries), KNOWN, DAY, IdIndex(ids))
    used = time.process_time() - began

    assert sum(each.code == "dead" for each in findings) == 500
    assert all(each.candidates for each in findings if each.code == "dead")
    assert used <= 3


def test_a_finding_of_equal_entries_names_what_differs(tmp_path):
    found = survey_of(tmp_path, ("a.py::t", "everywhere"), ("a.py::t", "everywhere"))
    first, second = found.entries
    changed = replace(found, entries=(first, replace(second, owner="you", evidence={"seen": "twice"})))

    (finding,) = check(changed, KNOWN, DAY)

    assert "with another owner, evidence" in finding.text
    assert not finding.fixable
