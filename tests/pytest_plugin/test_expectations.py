"""Expectations on a real suite: what each kind does, what is reported of it, and when a run is red."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

AS_OF = "--kvreg-as-of=2026-11-29"
HERE = ("--kvreg-expectations=excepted.yaml", "--kvreg-device=cpu", AS_OF)

OUTCOMES = {
    "test_right": "passed",
    "test_wrong[1]": "xfailed",
    "test_wrong[2]": "xfailed",
    "test_mended": "failed",
    "test_wrong_elsewhere": "passed",
    "test_sometimes": "flaky",
    "test_steady": "passed",
    "test_sometimes_without_a_port": "flaky",
    "test_hangs": "skipped",
    "test_crashes": "skipped",
    "test_recovered": "skipped",
    "test_wrong_past_its_date": "failed",
    "test_crashes_past_its_date": "error",
    "test_old_driver": "passed",
}


@pytest.fixture(scope="module")
def excepted(suite):
    """The suite with its list."""
    suite.take("excepted.py", "test_excepted.py")
    suite.take("excepted.yaml", "excepted.yaml")
    return suite


@pytest.fixture(scope="module")
def serial(excepted):
    """A run in one process."""
    return excepted.run(*HERE, "--junitxml=junit.xml")


@pytest.fixture(scope="module")
def spread(excepted):
    """A run of two workers in which tests that may not run here are run alone."""
    return excepted.run(*HERE, "-n2", "--kvreg-run-skipped", "--kvreg-limit-s=8", "--junitxml=junit-spread.xml")


@pytest.fixture(params=["serial", "spread"])
def ran(request):
    """Both."""
    return request.getfixturevalue(request.param)


def test_each_expectation_does_what_its_word_says_and_nothing_is_deselected(ran):
    assert ran.outcomes == OUTCOMES
    assert ran.code == 1


def test_a_strict_xfail_that_passes_fails_with_its_reason(ran):
    assert ran.test("test_mended")["message"] == (
        "[XPASS(strict)] xfail: was wrong (example/kernels#2, review by 2026-12-24)"
    )


def test_past_its_date_an_entry_excuses_nothing_and_a_crash_is_not_run(ran):
    assert "still wrong" in ran.test("test_wrong_past_its_date")["message"]
    assert "expired on 2026-10-01" in ran.test("test_crashes_past_its_date")["message"]
    assert "expired on 2026-10-01, excuses nothing" in ran.output


def test_the_summary_has_every_excepted_test_with_its_reason(ran):
    for line in (
        "test_excepted.py::test_wrong[*]: 2 xfailed: xfail: rounding of odd rows (example/kernels#1, "
        "review by 2026-12-24)",
        "test_excepted.py::test_sometimes: 1 flaky: flaky: races (example/kernels#4, review by 2026-12-24)",
        "test_excepted.py::test_steady: 1 passed: flaky: raced (example/kernels#4, review by 2026-12-24)",
        "test_excepted.py::test_hangs: 1 skipped: skip (hang): deadlock (example/kernels#5, review by 2026-12-24)",
    ):
        assert f"\n{line}\n" in ran.output
    assert "kvreg: cpu (cpu, cpu), as of 2026-11-29" in ran.output
    assert "2 flaky" in ran.output.splitlines()[-1]


def test_entries_that_meet_no_test_or_cannot_be_decided_are_named(ran):
    assert [each["test"] for each in ran.report["unmatched"]] == [
        "test_excepted.py::test_gone",
        "test_other.py::test_moved",
    ]
    assert "excepted.yaml:15: test_excepted.py::test_gone matches no test" in ran.output
    assert [each["line"] for each in ran.report["undecided"]] == [14]
    assert "test_old_driver is not applied: driver unknown here, required platform cpu, driver < 500" in ran.output


def test_the_report_names_place_day_and_what_was_expected(ran):
    environment = ran.report["environment"]

    assert (environment["device"], environment["platform"], environment["arch"]) == ("cpu", "cpu", "cpu")
    assert environment["versions"]["pytest"] == pytest.__version__
    assert ran.report["as_of"] == "2026-11-29"
    assert ran.report["exit_code"] == 1
    assert ran.report["executed"] == 7
    expectation = ran.test("test_sometimes")["expectation"]
    assert {name: expectation[name] for name in ("line", "expect", "reason", "issue", "owner", "review_by")} == {
        "line": 6,
        "expect": "flaky",
        "reason": "races",
        "issue": "example/kernels#4",
        "owner": "ada",
        "review_by": "2026-12-24",
    }
    assert "expectation" not in ran.test("test_right")


@pytest.mark.parametrize("file", ["junit.xml", "junit-spread.xml"])
def test_junit_has_every_test_with_its_reason(excepted, serial, spread, file):
    cases = {case.get("name"): case for case in ET.parse(excepted.folder / file).iter("testcase")}

    def properties(name):
        return {each.get("name"): each.get("value") for each in cases[name].iter("property")}

    assert set(cases) == set(OUTCOMES)
    assert properties("test_hangs") == {
        "kvreg_expect": "skip",
        "kvreg_kind": "hang",
        "kvreg_reason": "deadlock",
        "kvreg_issue": "example/kernels#5",
        "kvreg_owner": "ada",
        "kvreg_review_by": "2026-12-24",
        "kvreg_entry": serial.test("test_hangs")["expectation"]["id"],
    }
    assert properties("test_right") == {}
    for name in ("test_hangs", "test_sometimes", "test_wrong[1]"):
        (skipped,) = cases[name].iter("skipped")
        assert properties(name)["kvreg_reason"] in skipped.get("message")


def test_a_skip_runs_only_where_asked_and_only_in_a_process_that_can_be_killed(serial, spread):
    alone = {
        name: spread.test(name)["expectation"]["alone"]
        for name in OUTCOMES
        if name in spread.outcomes and ("expectation" in spread.test(name))
    }

    assert all(serial.test(name)["expectation"]["alone"] is None for name in alone)
    assert {name: ran["result"] for name, ran in alone.items() if ran} == {
        "test_hangs": "hang",
        "test_crashes": "crash",
        "test_recovered": "passed",
    }
    assert alone["test_hangs"]["detail"] == "killed after 8 s"
    assert alone["test_crashes"]["detail"] == "killed by SIGABRT"
    assert "test_excepted.py::test_recovered, alone: passed after" in spread.output


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_run_in_which_nothing_could_fail_is_red(excepted, workers):
    ran = excepted.run(*HERE, workers, "-k", "hangs or sometimes or steady")

    assert ran.code == 1
    assert ran.report["executed"] == 0
    assert "nothing was executed that could fail (2 flaky, 1 passed, 1 skipped)" in ran.output


@pytest.mark.parametrize(("mark", "outcome"), [("skip(reason='no card')", "skipped"), ("xfail", "xfailed")])
def test_a_job_in_which_every_test_skips_or_may_fail_is_not_green(suite, mark, outcome):
    suite.write("test_skipping.py", f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(): assert False\n")

    ran = suite.run("test_skipping.py", "--kvreg-platform=cpu")

    assert suite.plain("test_skipping.py")[0] == 0
    assert ran.outcomes == {"test_it": outcome}
    assert ran.code == 1


def test_on_a_day_before_its_date_an_entry_holds_and_strict_xfails_alone_are_green(excepted):
    ran = excepted.run(*HERE[:2], "--kvreg-as-of=2026-09-15", "-k", "wrong and not elsewhere")

    assert set(ran.outcomes.values()) == {"xfailed"}
    assert "test_wrong_past_its_date" in ran.outcomes
    assert ran.code == 0


def test_another_device_has_other_expectations_and_the_ini_key_names_the_list(excepted):
    excepted.write("pytest.ini", "[pytest]\nkvreg_expectations = excepted.yaml\n")
    try:
        ran = excepted.run("--kvreg-device=mi300x", AS_OF, "-k", "elsewhere or mended")
        off = excepted.run("--kvreg-expectations=", "--kvreg-device=mi300x", "-k", "elsewhere")
    finally:
        excepted.write("pytest.ini", "[pytest]\n")

    assert ran.outcomes == {"test_wrong_elsewhere": "failed", "test_mended": "passed"}
    assert ran.report["environment"]["device"] == "mi300x"
    assert off.outcomes == {"test_wrong_elsewhere": "passed"}


WHOLE = {
    "when": "everywhere",
    "expect": "xfail",
    "reason": "rounding",
    "issue": '"example/kernels#1"',
    "owner": "ada",
    "added": "2026-11-01",
    "review_by": "2026-12-24",
}
INCOMPLETE = {
    "no_such_day": ({"review_by": "2026-02-30"}, "review_by", "found '2026-02-30'"),
    "other_form": ({"review_by": "01.10.2026"}, "review_by", "found '01.10.2026'"),
    "with_a_time": ({"review_by": "2026-10-01T00:00:00"}, "review_by", "found '2026-10-01T00:00:00'"),
    "no_end": ({"review_by": None}, "review_by", "found none"),
    "flaky_for_ever": ({"expect": "flaky", "review_by": None}, "review_by", "found none"),
    "skipped_for_ever": ({"expect": "skip", "kind": "crash", "review_by": None}, "review_by", "found none"),
    "no_reason": ({"reason": None}, "reason", "found none"),
    "no_issue": ({"issue": "tomorrow"}, "issue", "found 'tomorrow'"),
    "no_owner": ({"owner": '" "'}, "owner", "found ' '"),
}
"""Test -> (its entry's differences from WHOLE, the field that it lacks, what is told of it)."""


def test_an_entry_without_a_reason_or_an_end_excuses_nothing_and_is_a_finding_of_a_red_run(suite):
    lines = []
    for name, (differing, _, _) in INCOMPLETE.items():
        stated = {**WHOLE, **differing, "test": f"test_incomplete.py::test_{name}"}
        fields = ", ".join(f"{field}: {value}" for field, value in stated.items() if value is not None)
        lines.append(f"- {{{fields}}}\n")
    listed = "schema: 1\nexpectations:\n"
    suite.write("incomplete.yaml", listed + "".join(lines))
    suite.write("green.yaml", listed + lines[3])
    tests = "".join(f"def test_{name}(): assert False\n" for name in INCOMPLETE)
    suite.write("test_incomplete.py", tests)
    suite.write("test_whole.py", "def test_it(): pass\n")

    ran = suite.run("--kvreg-expectations=incomplete.yaml", "--kvreg-device=cpu", AS_OF, "test_incomplete.py")
    green = suite.run("--kvreg-expectations=green.yaml", "--kvreg-device=cpu", AS_OF, "test_whole.py")

    due = dict.fromkeys((f"test_{name}" for name in INCOMPLETE), "failed")
    assert ran.outcomes == {**due, "test_skipped_for_ever": "error"}
    assert [each["line"] for each in ran.report["findings"]] == list(range(3, 3 + len(INCOMPLETE)))
    for line, (name, (_, field, found)) in enumerate(INCOMPLETE.items(), start=3):
        place = f"incomplete.yaml:{line}: no_{field}: test_incomplete.py::test_{name}: {field}: required"
        (told,) = [each for each in ran.output.splitlines() if each.startswith("finding: ") and place in each]
        assert found in told
        assert ran.test(f"test_{name}")["expectation"]["lacking"] == [field]
    assert "lacks review_by" in ran.test("test_skipped_for_ever")["message"]
    assert (green.code, green.report["exit_code"], green.outcomes) == (1, 1, {"test_it": "passed"})
    assert "green.yaml:3: no_review_by" in green.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kvreg-expectations=none.yaml",), "none.yaml: required a readable text file"),
        (("--kvreg-expectations=pytest.ini",), "pytest.ini"),
        (("--kvreg-expectations=excepted.yaml", "--kvreg-device=h2000"), "did you mean h200"),
        (
            ("--kvreg-expectations=excepted.yaml", "--kvreg-device=h200", "--kvreg-platform=rocm"),
            "device h200: required one of platform rocm, found cuda",
        ),
        (("--kvreg-expectations=excepted.yaml", "--kvreg-as-of=soon"), "--kvreg-as-of: required a date"),
        (("--kvreg-report=report.json", "--kvreg-limit-s=0"), "--kvreg-limit-s: required more than 0 seconds"),
        (("--kvreg-report=none/report.json", "--kvreg-platform=cpu"), "required a file in a folder"),
        (("--kvreg-report=", "--kvreg-platform=cpu"), "found an empty name"),
        (("--kvreg-report=/dev/null", "--kvreg-platform=cpu"), "required a regular file"),
    ],
    ids=["no file", "no list", "device", "platform", "day", "limit", "report", "no name", "device file"],
)
def test_wrong_options_are_one_line_and_exit_4_with_workers_too(excepted, arguments, told):
    code, output = excepted.plain(*arguments, "-n2")

    assert code == 4
    assert told in output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output


INERT = """\
import sys


def test_nothing_heavy_is_loaded():
    assert "kvreg.pytest" in sys.modules
    heavy = {"torch", "yaml", "pydantic", "numpy", "click", "rich"}
    assert not heavy & set(sys.modules)
    assert not [name for name in sys.modules if name.startswith("kvreg.core") or name.startswith("kvreg.pytest.")]
"""


def test_without_an_option_the_plugin_loads_nothing(suite):
    suite.write("test_inert.py", INERT)

    code, output = suite.plain("test_inert.py")

    assert code == 0, output


def test_the_installed_entry_point_has_the_name_that_p_takes():
    from importlib import metadata

    points = [point for point in metadata.entry_points(group="pytest11") if point.name.startswith("kvreg")]
    if not points:
        pytest.skip("kvreg runs from a source tree here")
    assert {(point.name, point.value) for point in points} == {("kvreg.pytest", "kvreg.pytest")}
