"""ci/plan and ci/job as a CI system calls them: real processes, on a machine without a card."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvreg.core import environment

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
    environment |= {"PYTHON": sys.executable, "TRITON_INTERPRET": "0", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_plan_takes_everything_where_the_base_is_no_commit(tmp_path):
    done = run("ci/plan", "github", "no-such-branch", "cpu", KVREG_HOME=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert [job["triton"] for job in json.loads(done.stdout)["include"]] == ["3.9.0", "3.6.0"]
    assert done.stderr == "ci/plan: 'no-such-branch' is no commit here, so every job is taken\n"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_a_plan_of_no_change_is_empty_and_says_why(tmp_path):
    done = run("ci/plan", "github", "HEAD", "cpu", "mi300", KVREG_HOME=str(tmp_path))

    assert (done.returncode, done.stdout) == (0, '{"include": []}\n')
    assert done.stderr.count("nothing changed") == 3


@pytest.mark.parametrize(("chosen", "code"), [("bucket", 0), ("no_test_of_that_name", 1)])
def test_a_job_runs_its_tests_with_a_report_and_is_red_when_nothing_ran(tmp_path, chosen, code):
    # One report a test: the two cases run at the same time.
    done = run("ci/job", "--device", "cpu", "--report", str(tmp_path / "report.json"), "--", "-q",
               "tests/core/test_tuned.py", "-k", chosen, "-n", "0", KVREG_HOME=str(tmp_path))  # fmt: skip

    assert done.returncode == code, done.stdout + done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == 1


def test_a_job_without_a_device_is_a_usage_error():
    done = run("ci/job", "tests")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ci/job: required --device, found none")


def test_no_pipeline_and_no_page_asks_for_a_variable_that_kvreg_would_warn_of():
    files = [*ROOT.glob(".buildkite/*.yml"), *ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("docs/*.md")]

    named = {name for file in files for name in re.findall(r"\bKVREG_[A-Z]+\b", file.read_text())}

    assert "KVREG_HOME" in named
    assert named <= set(environment.VARIABLES)
