"""From runners and the registry to jobs; a variant, a runner or a label that leads nowhere is a finding."""

from dataclasses import replace
from datetime import date

import pytest

from kvreg.ci.matrix import formats
from kvreg.ci.matrix.jobs import matrix
from kvreg.ci.matrix.runners import read
from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read as read_list
from kvreg.core.expectations.known import Known
from kvreg.core.variants import Constraints

IDS = ("tests/card/test_a.py::test_one", "tests/card/test_a.py::test_two[x]", "tests/other.py::test_three")


@pytest.fixture
def made(workshop, written):
    """Make the matrix of the toy platform."""

    def make(runners=None, entries=(), ids=IDS):
        known = Known(workshop.index().devices(), tuple(str(each.id) for each in workshop.offered))
        return matrix(read(written(runners=runners)), [workshop.backend], known, entries, ids)

    return make


@pytest.fixture
def excepted(tmp_path):
    """Return expectations of tests, each where `when` says."""

    def listed(*tests, when="everywhere"):
        path = tmp_path / "expectations.yaml"
        day = date.today().isoformat()
        body = "".join(
            f"- test: {test}\n  when: {when}\n  expect: xfail\n  reason: r\n  issue: o/r#1\n  owner: me\n"
            f"  added: {day}\n  review_by: {day}\n"
            for test in tests
        )
        path.write_text(f"schema: 1\nexpectations:\n{body}")
        return read_list(path)

    return listed


def codes(found):
    return [(each.code, each.subject) for each in found.findings]


def test_each_runner_gives_a_job_for_each_set_of_versions(made, workshop):
    found = made()

    assert [(job.id, job.device, job.torch) for job in found.jobs] == [
        ("first-newest", "alpha", "2.13.0"),
        ("first-machine", "alpha", None),
        ("second", "gamma", None),
    ]
    assert found.jobs[0].variants == tuple(str(each.id) for each in workshop.offered)
    assert found.findings == ()


def test_a_variant_that_no_runner_can_run_is_a_finding_that_names_the_arch(made, workshop):
    limits = Constraints(archs=("toy_9",))
    workshop.offered = (replace(workshop.offered[0], constraints=limits), *workshop.offered[1:])

    found = made()

    assert codes(found) == [("variant_without_runner", "toy-none-write@1")]
    assert "required a runner of toy with toy_9, found none" in found.findings[0].text
    assert "toy-none-write@1" not in found.jobs[0].variants


def test_a_platform_without_any_runner_is_a_finding_for_each_variant(made, workshop):
    found = made([])

    assert codes(found) == [("variant_without_runner", str(each.id)) for each in workshop.offered]


def test_a_runner_whose_every_test_is_excepted_is_a_finding_there_and_nowhere_else(made, excepted):
    entries = excepted("tests/card/test_a.py::test_one", "tests/card/test_a.py::test_two[*]", when="{device: gamma}")

    found = made(entries=entries)

    assert codes(found) == [("all_excepted", "second")]
    assert [len(job.expectations) for job in found.jobs] == [0, 0, 2]


def test_one_test_that_is_not_excepted_is_enough(made, excepted):
    assert made(entries=excepted("tests/card/test_a.py::test_one")).findings == ()


def test_a_version_decides_whether_an_expectation_can_hold(made, excepted):
    found = made(entries=excepted("tests/card/test_a.py::test_one", when="{triton: '< 3.8'}"))

    # What the machine has is unknown, so the entry can hold there.
    assert [len(job.expectations) for job in found.jobs] == [0, 1, 1]


def test_a_suite_without_a_collected_test_is_a_finding(made):
    found = made(ids=("tests/cards/test_a.py::test_one",))

    assert {code for code, _ in codes(found)} == {"no_tests"}
    assert made(ids=()).findings == ()


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (["ubuntu-24.4"], "did you mean ubuntu-24.04"),
        (["h200"], "required one of GitHub's, or self-hosted beside it"),
        (["self_hosted", "alpha"], "did you mean self-hosted?"),
    ],
)
def test_a_label_that_nobody_has_is_a_finding(made, labels, text):
    found = made([{"labels": labels}])

    assert found.findings[0].code == "unknown_label"
    assert text in found.findings[0].text


def test_more_jobs_than_one_matrix_takes_are_a_finding(made):
    many = [{"name": f"r{number}", "stacks": ["machine"]} for number in range(257)]

    assert codes(made(many)) == [("too_many_jobs", "runners.yaml")]


def test_an_unknown_device_is_a_bad_file_that_names_the_runner(made):
    with pytest.raises(BadFile, match=r"runners\.yaml: first: device 'alhpa': .* did you mean alpha"):
        made([{"device": "alhpa"}])


def test_github_gets_nine_keys_a_job(made):
    first = formats.github(made().jobs)["include"][0]

    assert first == {
        "platform": "toy",
        "device": "alpha",
        "runner": ["self-hosted", "alpha"],
        "python": "3.11",
        "torch": "2.13.0",
        "triton": "3.9.0",
        "tests": "-m gpu tests/card tests/test_all.py",
        "variants": list(made().jobs[0].variants),
        "expectations": [],
    }


def test_buildkite_gets_a_command_step_with_its_queue_and_limit(made):
    newest, machine, _ = formats.buildkite(made().jobs)["steps"]

    assert newest["command"] == (
        "ci/job --device alpha --python 3.11 --torch 2.13.0 --triton 3.9.0 -- -m gpu tests/card tests/test_all.py"
    )
    assert machine["command"] == "ci/job --device alpha -- -m gpu tests/card tests/test_all.py"
    assert (machine["key"], machine["agents"], machine["timeout_in_minutes"]) == (
        "first-machine",
        {"queue": "alpha"},
        60,
    )
