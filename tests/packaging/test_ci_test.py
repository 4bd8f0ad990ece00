"""ci/test's own rules, with stand-ins for the tools it starts: what it runs, and that no failure is lost."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.checkout

# Every tool writes down how it was called; a file `fails` names the calls that fail and with what.
TOOL = """\
#!/bin/sh
echo "$(basename "$0") $*" >>"$RECORD/calls"
if [ -f "$RECORD/fails" ]; then
    while read -r code pattern; do
        case "$(basename "$0") $*" in *$pattern*) exit "$code" ;; esac
    done <"$RECORD/fails"
fi
case "$*" in *"hatchling build"*) for folder; do :; done; mkdir -p "$folder"; : >"$folder/kvreg-0.whl" ;; esac
exit 0
"""


@pytest.fixture
def ci(root, tmp_path):
    """Run the real ci/test over a tree of its own, whose environment holds stand-ins."""
    tree, record = tmp_path / "tree", tmp_path / "record"
    shutil.copytree(root / "ci", tree / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tree)
    (tree / "tests").mkdir()
    record.mkdir()
    pins = (root / "ci" / "constraints.txt").read_text()
    kept = "".join(line for line in pins.splitlines(True) if not line.startswith(("triton==", "numpy==")))
    oldest = kept + (root / "ci" / "constraints-oldest.txt").read_text()
    schemas = (root / "ci" / "constraints-schemas.txt").read_text()
    for environment, content in (("env", pins), ("env-oldest", oldest), ("env-schemas", schemas)):
        binaries = tmp_path / environment / "bin"
        binaries.mkdir(parents=True)
        for name in ("python", "ruff", "mypy", "lint-imports", "check-jsonschema"):
            (binaries / name).write_text(TOOL)
            (binaries / name).chmod(0o755)
        stamp = subprocess.run(["cksum"], input=content.encode(), capture_output=True, check=True)
        (binaries.parent / "made-of").write_bytes(stamp.stdout)

    def run(*arguments, fails=""):
        (record / "fails").write_text(fails)
        (record / "calls").write_text("")
        variables = {**os.environ, "TEST_ENV": str(tmp_path / "env"), "RECORD": str(record)}
        command = [str(tree / "ci" / "test"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        return done, (record / "calls").read_text().splitlines()

    return run


def pytest_runs(calls):
    return [call for call in calls if "-m pytest" in call]


def test_linters_come_first_then_the_wheel_then_both_forms_of_tests(ci):
    done, calls = ci()

    assert done.returncode == 0, done.stderr
    assert calls[:4] == ["ruff check .", "ruff format --check .", "mypy ", "lint-imports "]
    assert [call for call in calls if "hatchling build" in call or "pip install" in call][1].endswith("kvreg-0.whl")
    assert "checkout and not gpu and not long" in pytest_runs(calls)[0]
    assert "not checkout and not gpu and not long" in pytest_runs(calls)[-1]
    assert len(pytest_runs(calls)) == 2


@pytest.mark.parametrize("tool", ["ruff check", "ruff format", "mypy", "lint-imports"])
def test_a_linter_that_fails_ends_it_after_the_other_linters(ci, tool):
    done, calls = ci(fails=f"1 {tool}\n")

    assert done.returncode == 1
    assert len(calls) == 4
    assert f"failed: {tool.split()[0]}" in done.stderr


@pytest.mark.parametrize("code", [1, 2, 3, 4])
@pytest.mark.parametrize("form", ["-m checkout and", "-m not checkout and"])
def test_a_failure_of_either_form_of_tests_is_its_failure(ci, code, form):
    done, calls = ci(fails=f"{code} {form}\n")

    assert done.returncode == 1
    assert "failed: the tests of" in done.stderr
    assert "no test" not in done.stderr
    assert len(pytest_runs(calls)) == 2


@pytest.mark.parametrize("step", ["hatchling build", "pip install"])
def test_a_wheel_that_does_not_build_or_install_ends_it(ci, step):
    done, calls = ci(fails=f"1 {step}\n")

    assert done.returncode == 1
    assert pytest_runs(calls) == []


def test_every_run_audits_comparisons_and_applies_the_recorded_exceptions_of_the_cpu(ci):
    _, calls = ci("--all")

    assert all("--kvreg-audit" in call for call in pytest_runs(calls))
    applied = [call.partition("--kvreg-expectations ")[2].split(" -m ")[0] for call in pytest_runs(calls)]
    assert len(applied) == 3
    assert all(each.endswith("/ci/expectations.yaml --kvreg-device cpu") for each in applied)


def test_arguments_go_to_both_forms_and_leave_the_linters_out(ci):
    done, calls = ci("tests/core", "-k", "hash")

    assert done.returncode == 0, done.stderr
    assert not [call for call in calls if call.startswith(("ruff", "mypy", "lint"))]
    assert all(call.endswith("tests/core -k hash") for call in pytest_runs(calls))


def test_no_test_in_one_form_is_fine_and_in_both_a_failure(ci):
    assert ci("tests/core", fails="5 -m checkout and\n")[0].returncode == 0
    done, _ = ci("tests/core", fails="5 -m pytest\n")

    assert done.returncode == 1
    assert "no test was found" in done.stderr


def test_all_adds_the_long_tests_and_the_oldest_triton(ci):
    done, calls = ci("--all")

    assert done.returncode == 0, done.stderr
    assert len(pytest_runs(calls)) == 3
    assert not [call for call in (pytest_runs(calls)[0], pytest_runs(calls)[-1]) if "not long" in call]
    assert [call for call in calls if call.startswith("check-jsonschema")] == [
        "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml",
        "check-jsonschema --builtin-schema vendor.buildkite .buildkite/pipeline.yml",
        "check-jsonschema --builtin-schema vendor.buildkite ci/matrix.buildkite.json",
    ]


def test_a_pipeline_that_its_schema_refuses_ends_it(ci):
    done, calls = ci("--all", fails="1 vendor.buildkite\n")

    assert done.returncode == 1
    assert "failed: check-jsonschema" in done.stderr
    assert pytest_runs(calls) == []


def test_a_folder_that_is_no_environment_is_left_alone(root, tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "letter.txt").write_text("keep me")

    done = subprocess.run(
        [str(root / "ci" / "test"), "tests/core"],
        env={**os.environ, "TEST_ENV": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "is no environment" in done.stderr
    assert (place / "letter.txt").read_text() == "keep me"


def test_a_python_that_is_missing_is_said(root, tmp_path):
    done = subprocess.run(
        [str(root / "ci" / "test"), "tests/core"],
        env={**os.environ, "TEST_ENV": str(tmp_path / "new"), "PYTHON": "python-that-is-not-here"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "venv failed" in done.stderr
