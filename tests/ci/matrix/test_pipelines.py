"""What a workflow or pipeline must not hold: each planted fault is found, and kvreg's own have none."""

from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from kvreg.ci.matrix.pipelines import check
from kvreg.ci.matrix.runners import read
from kvreg.core.errors import BadFile

PINNED = f"actions/checkout@{'a' * 40}"
WORKFLOW = {
    "on": {"push": None},
    "permissions": {"contents": "read"},
    "jobs": {
        "plan": {
            "runs-on": "ubuntu-24.04",
            "timeout-minutes": 5,
            "outputs": {"matrix": "${{ steps.plan.outputs.matrix }}"},
            "steps": [{"uses": PINNED}, {"id": "plan", "run": "ci/runners.yaml", "env": {"B": "${{ github.sha }}"}}],
        },
        "jobs": {
            "needs": "plan",
            "strategy": {"matrix": "${{ fromJSON(needs.plan.outputs.matrix) }}"},
            "runs-on": "${{ matrix.runner }}",
            "timeout-minutes": 5,
            "steps": [{"run": "true"}],
        },
    },
}
PIPELINE = {
    "steps": [
        {"label": "a", "key": "a", "command": "true", "agents": {"queue": "alpha"}, "timeout_in_minutes": 5},
        "wait",
        {"key": "b", "commands": ["true"], "agents": {"queue": "gamma"}, "timeout_in_minutes": 5, "depends_on": "a"},
    ]
}


@pytest.fixture
def found(written, tmp_path):
    """Return the codes found in a document after `edit` has changed it."""
    fleet = read(written())

    def codes(document, edit=lambda document: None):
        changed = deepcopy(document)
        edit(changed)
        path = tmp_path / "pipeline.yml"
        path.write_text(yaml.safe_dump(changed))
        return [each.code for each in check(path, fleet)]

    return codes


def test_a_sound_workflow_and_pipeline_have_no_finding(found):
    assert found(WORKFLOW) == []
    assert found(PIPELINE) == []


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda d: d.pop("on"), "no_trigger"),
        (lambda d: d.pop("permissions"), "permissions"),
        (lambda d: d.update(permissions="write-all"), "permissions"),
        (lambda d: d["jobs"]["jobs"].update(permissions={"contents": "write"}), "permissions"),
        (lambda d: d.update(job={}), "unknown_key"),
        (lambda d: d["jobs"]["plan"].update({"runs_on": "x"}), "unknown_key"),
        (lambda d: d["jobs"]["plan"]["steps"][0].update(whith={}), "unknown_key"),
        (lambda d: d["jobs"]["plan"].update({"runs-on": "ubuntu-24.4"}), "unknown_label"),
        (lambda d: d["jobs"]["plan"].update({"runs-on": ["self-hosted", "beta"]}), "unknown_label"),
        (lambda d: d["jobs"]["plan"].pop("runs-on"), "unknown_label"),
        (lambda d: d["jobs"]["plan"].pop("timeout-minutes"), "no_limit"),
        (lambda d: d["jobs"]["jobs"].update(needs=["plan", "plans"]), "unknown_job"),
        (lambda d: d["jobs"]["plan"]["steps"][1].update(id="other"), "unknown_step"),
        (lambda d: d["jobs"]["plan"]["steps"][0].update(uses="actions/checkout@v4"), "not_pinned"),
        (lambda d: d["jobs"]["plan"]["steps"][0].update(run="true"), "bad_shape"),
        (lambda d: d["jobs"]["jobs"].update(steps=[]), "bad_shape"),
        (lambda d: d["jobs"]["plan"]["steps"][1].update(run="echo ${{ github.head_ref }}"), "injection"),
        (lambda d: d["jobs"]["plan"]["steps"][1].update(env={"T": "${{ secrets.PAT }}"}), "secret"),
        (lambda d: d["jobs"]["plan"]["steps"][1].update(env={"GITHUB_TOKEN": "x"}), "secret"),
        (lambda d: d["jobs"]["plan"]["steps"][1].update(run="ci/nothing"), "unknown_file"),
    ],
)
def test_each_fault_of_a_workflow_is_found(found, edit, code):
    assert found(WORKFLOW, edit) == [code]


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda d: d.update(agent={}), "unknown_key"),
        (lambda d: d["steps"][0].update(comand="true"), "unknown_key"),
        (lambda d: d["steps"][0]["agents"].update(queue="beta"), "unknown_label"),
        (lambda d: d["steps"][0].pop("agents"), "unknown_label"),
        (lambda d: d["steps"][0].pop("timeout_in_minutes"), "no_limit"),
        (lambda d: d["steps"][0].pop("command"), "bad_shape"),
        (lambda d: d["steps"][2].update(depends_on=["c"]), "unknown_job"),
        (lambda d: d["steps"][0].update(command="buildkite-agent secret get X"), "secret"),
        (lambda d: d["steps"][0].update(command="ci/nothing | tee log"), "unknown_file"),
    ],
)
def test_each_fault_of_a_pipeline_is_found(found, edit, code):
    assert found(PIPELINE, edit) == [code]


def test_a_key_that_two_steps_have_is_found_at_both(found):
    assert found(PIPELINE, lambda d: d["steps"][2].update(key="a", depends_on=None)) == ["bad_shape", "bad_shape"]


def test_what_is_neither_is_a_bad_file(written):
    with pytest.raises(BadFile, match=r"required jobs .* or a list of steps"):
        check(written(), read(written()))


@pytest.mark.checkout
@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".buildkite/pipeline.yml", "ci/matrix.buildkite.json"])
def test_kvregs_own_have_no_finding(name):
    root = Path(__file__).parents[3]

    assert check(root / name, read(root / "ci" / "runners.yaml")) == []
