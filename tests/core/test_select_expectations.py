"""Recorded exceptions in a selection: a test that is switched off takes its variant's validation away."""

import os

import pytest

from kvreg.cli import answers
from kvreg.core import documents
from kvreg.core.index import Index
from kvreg.core.shipping import ship

INT4 = "int4_per_token_head"
DECODE = "toy-int4-decode@1"


def reasons(result, variant=DECODE):
    return [each for decision in result.decisions if decision.variant == variant for each in decision.reasons]


@pytest.mark.parametrize(
    ("when", "expect"),
    [
        ("everywhere", "xfail"),
        ({"platform": "toy"}, "flaky"),
        ({"device": "alpha"}, "skip"),
        ({"arch": "toy_1"}, "xfail"),
    ],
)
def test_a_variant_whose_correctness_test_is_off_is_not_validated_there(workshop, when, expect):
    workshop.validate("alpha")
    kind = {"kind": "crash"} if expect == "skip" else {}
    workshop.except_test(when=when, expect=expect, invalidates=[DECODE], **kind)

    (result,) = workshop.ask("alpha", INT4, 96).results

    assert result.verdict == "refused"
    (reason,) = reasons(result)
    (entry,) = result.expectations
    assert reason.code == "expectation"
    assert reason.found.startswith(f"{expect} of tests/kernels/test_attend.py::test_decode[int4-96]")
    assert f"kvreg deselections show {entry.id}" in reason.remedy
    assert "to count on alpha" in result.reason


@pytest.mark.parametrize("when", [{"device": "beta"}, {"platform": "cuda"}, {"device": "not alpha"}])
def test_it_stays_validated_where_the_exception_cannot_hold(workshop, when):
    workshop.validate("alpha")
    workshop.except_test(when=when, invalidates=[DECODE])

    result = workshop.ask("alpha", INT4, 96).result

    assert (result.expectations, result.notes) == ((), ())


def test_what_is_not_known_here_cannot_exclude_an_exception(workshop):
    workshop.validate("alpha")
    workshop.except_test(when={"driver": "< 500"}, invalidates=[DECODE])

    assert workshop.ask("alpha", INT4, 96).results[0].verdict == "refused"


def test_another_variant_and_version_is_not_concerned(workshop):
    workshop.validate("alpha")
    workshop.except_test(invalidates=["toy-none-decode@1", "toy-int4-decode@2"])

    assert workshop.ask("alpha", INT4, 96).result.expectations == ()


def test_an_exception_that_only_touches_a_variant_is_shown_beside_it(workshop):
    workshop.validate("alpha")
    workshop.except_test(expect="flaky", touches=[DECODE])

    answer = workshop.ask("alpha", INT4, 96)

    (shown,) = documents.selection(answer)["results"][0]["expectations"]
    assert shown == {
        "id": answer.result.expectations[0].id,
        "expect": "flaky",
        "issue": "https://example.org/issues/7",
        "review_by": "2026-12-01",
    }
    (note,) = answer.result.notes
    assert note.code == "expectation"
    assert "flaky of tests/kernels/test_attend.py::test_decode[int4-96] (everywhere)" in note.text


def test_an_edited_list_is_seen_by_the_next_selection(workshop):
    workshop.validate("alpha")
    workshop.except_test(invalidates=[DECODE])
    assert workshop.ask("alpha", INT4, 96).results[0].verdict == "refused"

    workshop.except_test(invalidates=["toy-none-decode@1"])

    assert workshop.ask("alpha", INT4, 96).results[0].verdict == "selected"


def test_a_shipped_index_holds_the_list_and_answers_without_it(workshop, tmp_path):
    workshop.validate("alpha")
    workshop.except_test(invalidates=[DECODE])
    ship([workshop.backend], tmp_path / "shipped", workshop.exceptions)
    text = workshop.exceptions.read_text()
    workshop.exceptions.unlink()

    index = Index([workshop.backend], workshop.home, tmp_path / "shipped")

    assert workshop.ask("alpha", INT4, 96, index=index).results[0].verdict == "refused"
    assert (tmp_path / "shipped" / "expectations.yaml").read_text() == text


def test_select_reads_no_yaml_for_it(workshop, monkeypatch):
    workshop.validate("alpha")
    workshop.except_test(touches=[DECODE])
    os.utime(workshop.exceptions, (1e9, 1e9))  # a source as young as this is read anew each time
    workshop.ask("alpha", INT4, 96)
    monkeypatch.setattr("kvreg.core.builders.expectations", lambda path: pytest.fail("read again"))

    assert workshop.ask("alpha", INT4, 96).result.expectations


def test_the_table_says_that_a_test_is_off_and_how_to_see_which(workshop, capsys):
    workshop.validate("alpha")
    workshop.except_test(invalidates=[DECODE])
    answer = workshop.ask("alpha", None, 96)
    (entry,) = next(result for result in answer.results if result.mode == INT4).expectations

    answers.show(answer)

    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines() if "test switched off" in line] == [INT4]
    assert f"run `kvreg deselections show {entry.id}`" in out


def test_a_refusal_of_all_that_was_asked_ends_with_the_command_that_shows_the_entry(workshop, capsys):
    workshop.validate("alpha")
    workshop.except_test(invalidates=[DECODE])
    answer = workshop.ask("alpha", INT4, 96)

    answers.show(answer)

    assert (
        capsys.readouterr().out.splitlines()[-1] == f"kvreg deselections show {answer.results[0].expectations[0].id}"
    )
