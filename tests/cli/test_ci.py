"""`kvreg ci`: jobs in each format, the choice that a change makes, and exit 4 with every finding named."""

import io
import json

import pytest
import yaml

from kvreg.ci.matrix.runners import CHECKOUT

FLEET = {
    "schema": 1,
    "sources": ["."],
    "paths": {"every_job": ["ci"], "no_job": ["docs"]},
    "stacks": {"machine": {}},
    "suites": {"all": {"tests": ["tests/a.py"]}},
    "runners": [
        {
            "name": name,
            "device": device,
            "labels": ["self-hosted", name],
            "queue": name,
            "suite": "all",
            "stacks": ["machine"],
        }
        for name, device in (("host", "cpu"), ("hopper", "h200"), ("cdna", "mi300x"), ("xe", "b580"))
    ],
}


@pytest.fixture
def fleet(tmp_path):
    """Write a file of runners in a checkout of two files, with collected ids beside it."""

    def write(**changed):
        folder = tmp_path / "checkout" / "ci"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "tests").mkdir(exist_ok=True)
        (folder.parent / "tests" / "a.py").write_text("")
        (folder / "test-ids.txt").write_text("tests/a.py::test_a\n")
        path = folder / "runners.yaml"
        path.write_text(yaml.safe_dump({**FLEET, **changed}))
        return str(path)

    return write


def test_a_fleet_that_serves_all_ends_with_0_and_a_row_a_job(here, fleet):
    answer = here("ci", "matrix", "--runners", fleet())

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0].split() == [
        "job", "device", "runner", "versions", "suite", "variants", "expectations",
    ]  # fmt: skip
    assert "hopper  h200 (cuda)" in answer.out
    assert answer.out.endswith("\nsuite all: pytest tests/a.py\n")


def test_github_is_one_line_and_findings_go_beside_it(here, fleet):
    answer = here("ci", "matrix", "--runners", fleet(runners=FLEET["runners"][:3]), "--format", "github")

    assert answer.code == 4
    assert answer.out.count("\n") == 1
    assert [job["device"] for job in json.loads(answer.out)["include"]] == ["cpu", "h200", "mi300x"]
    assert "kvreg: variant_without_runner: triton-none-write@1: required a runner of xpu, found none" in answer.err


def test_the_json_document_holds_jobs_and_findings(here, fleet):
    path = fleet(runners=FLEET["runners"][1:])
    answer = here("ci", "matrix", "--runners", path, "--json")

    assert (answer.code, answer.err) == (4, "")
    assert {each["code"] for each in answer.document["findings"]} == {"variant_without_runner"}
    assert here("ci", "matrix", "--runners", path, "--format", "json").document == answer.document


def test_buildkite_is_a_pipeline_of_the_runners_that_are_asked_for(here, fleet):
    answer = here("ci", "matrix", "--runners", fleet(), "--format", "buildkite", "--only", "cdna")

    (step,) = answer.document["steps"]
    assert (answer.code, step["command"]) == (0, "ci/job --device mi300x -- tests/a.py")


def test_a_runner_that_is_not_there_is_a_usage_error_with_the_nearest(here, fleet):
    answer = here("ci", "matrix", "--runners", fleet(), "--only", "hoper")

    assert answer.code == 2
    assert answer.err.endswith("found 'hoper'; did you mean hopper?\n")


def test_a_change_picks_jobs_and_says_why_of_each(here, fleet, monkeypatch):
    path = fleet()
    table = here("ci", "select", "--runners", path, "--changed", "docs/x.md", "docs/y.md")
    picked = here("ci", "select", "--runners", path, "--changed", "./tests/a.py", "--json")
    monkeypatch.setattr("sys.stdin", io.StringIO("docs/x.md\nci/runners.yaml\n\n"))
    listed = here("ci", "select", "--runners", path, "--changed", "-", "--format", "github")

    assert (table.code, table.out.count("no job reads docs/x.md, docs/y.md")) == (0, 4)
    assert picked.document["changed"] == ["tests/a.py"]
    assert [each["picked"] for each in picked.document["jobs"]] == [True] * 4
    assert picked.document["jobs"][0]["why"] == "tests/a.py: one of its tests, or shared by them"
    assert len(json.loads(listed.out)["include"]) == 4


def test_nothing_picked_is_an_empty_matrix(here, fleet):
    answer = here("ci", "select", "--runners", fleet(), "--changed", "docs/x.md", "--format", "github")

    assert (answer.code, answer.out) == (0, '{"include": []}\n')


def test_no_list_of_changes_is_a_usage_error_and_no_empty_matrix(here, fleet):
    answer = here("ci", "select", "--runners", fleet(), "--format", "github")

    assert (answer.code, answer.out) == (2, "")
    assert "missing option '--changed'" in answer.err


def test_a_workflow_with_faults_ends_with_4_and_a_line_for_each(here, fleet, tmp_path):
    workflow = tmp_path / "ci.yml"
    workflow.write_text("on: push\njobs: {a: {runs-on: ubuntu-24.4, steps: [{uses: a/b@v1}]}}\n")

    answer = here("ci", "check", str(workflow), "--runners", fleet())
    document = here("ci", "check", str(workflow), "--runners", fleet(), "--json").document

    assert answer.code == 4
    assert answer.out.splitlines()[-1] == "1 file, 4 findings"
    codes = ["permissions", "no_limit", "unknown_label", "not_pinned"]
    assert [line.partition(":")[0] for line in answer.out.splitlines()[:-1]] == codes
    assert [each["code"] for each in document["findings"]] == codes


@pytest.mark.skipif(CHECKOUT.is_file(), reason="a checkout has its own runners")
def test_an_installed_package_asks_for_the_file(here):
    answer = here("ci", "matrix")

    assert answer.code == 2
    assert answer.err.endswith("name a file: --runners\n")
