"""`kvreg deselections unskip`: each excepted test alone, what it says of each, and the diff that it proposes."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from kvreg.cli.main import status
from kvreg.core.errors import DeviceUnavailable
from kvreg.core.expectations.files import survey_text
from kvreg.core.expectations.fixing import without
from kvreg.pytest import place

SUITE = """\
import os, pathlib, time
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_mended(n): pass

def test_mended_here(): pass

def test_wrong(): assert False, "off by one"

def test_every_other_time():
    mark = pathlib.Path("mark")
    if mark.exists():
        mark.unlink()
    else:
        mark.touch()
        raise OSError("no port was free")

def test_crashes(): os.abort()

def test_hangs():
    # A child of its own that would outlive it.
    pathlib.Path("child").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")))
    time.sleep(600)
"""

COMMON = "issue: example/kernels#1, owner: ada, added: 2026-11-01, review_by: 2026-12-24"
LIST = f"""\
# Exceptions of the suite.
schema: 1
expectations:

# rounding: this one is worth a comment
- test: "test_suite.py::test_mended[*]"
  when: {{platform: cpu}}  # nowhere else
  expect: xfail
  reason: rounding
  issue: example/kernels#1
  owner: ada
  added: 2026-11-01
  review_by: 2026-12-24
- {{test: "test_suite.py::test_mended_here", when: everywhere, expect: xfail, reason: all cards, {COMMON}}}
# what follows is really broken
- {{test: "test_suite.py::test_wrong", when: {{platform: cpu}}, expect: xfail, reason: index, {COMMON}}}
- {{test: "test_suite.py::test_every_other_time", when: {{platform: cpu}}, expect: flaky, reason: ports, {COMMON}}}
- {{test: "test_suite.py::test_crashes", when: {{device: cpu}}, expect: skip, kind: crash, reason: abort, {COMMON}}}
- {{test: "test_suite.py::test_hangs", when: {{device: cpu}}, expect: skip, kind: hang, reason: lock, {COMMON}}}
- {{test: "test_suite.py::test_gone", when: {{device: cpu}}, expect: xfail, reason: unknown, {COMMON}}}
- {{test: "test_suite.py::test_wrong", when: {{driver: "< 500"}}, expect: xfail, reason: index, {COMMON}}}
- {{test: "test_suite.py::test_wrong", when: {{device: h200}}, expect: xfail, reason: index, {COMMON}}}
"""
REMOVED = """\
- test: "test_suite.py::test_mended[*]"
  when: {platform: cpu}  # nowhere else
  expect: xfail
  reason: rounding
  issue: example/kernels#1
  owner: ada
  added: 2026-11-01
  review_by: 2026-12-24
"""
DIFF = "\n".join(
    [
        "--- a/list.yaml",
        "+++ b/list.yaml",
        "@@ -3,14 +3,6 @@",
        " expectations:",
        " ",
        " # rounding: this one is worth a comment",
        *(f"-{line}" for line in REMOVED.splitlines()),
        "",
    ]
)


def runs(pid):
    """Whether a process runs; one that is dead and not yet collected has no command line any more."""
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A suite with its list."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -x -p no:hypothesispytest\n")
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "list.yaml").write_text(LIST)
    return folder


@pytest.fixture
def ask(project, monkeypatch, capsys, tmp_path):
    """Run `unskip` in the project; gives its exit code, output and errors."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "home"))

    def run(*arguments):
        code = status(["deselections", "unskip", "--file", "list.yaml", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def ids(project):
    """Test -> the id of its entry for the cpu."""
    found = survey_text((project / "list.yaml").read_text(), Path("list.yaml")).entries
    return {each.test.split("::")[1]: each.id for each in reversed(found)}


def test_each_test_runs_alone_and_what_passes_may_go(ask, ids, project):
    code, out, _ = ask("--device", "cpu", "--n", "1", "--timeout-s", "7", "--json")

    assert code == 4
    document = json.loads(out)
    cases = {each["test"].split("::")[1]: each for each in document["entries"]}
    assert {name: [test["verdict"] for test in case["tests"]] for name, case in cases.items()} == {
        "test_mended[*]": ["fixed", "fixed"],
        "test_mended_here": ["fixed"],
        "test_wrong": ["still failing"],
        "test_every_other_time": ["still failing"],
        "test_crashes": ["crash"],
        "test_hangs": ["hang"],
        "test_gone": ["not found"],
    }
    assert cases["test_wrong"]["line"] == 16  # the entry for another card was not asked
    assert [name for name, case in cases.items() if case["may_go"]] == ["test_mended[*]"]
    assert {"h200", "mi300x", "b580"} <= set(cases["test_mended_here"]["elsewhere"])
    detail = {name: case["tests"][0]["runs"][0]["detail"] for name, case in cases.items()}
    assert "off by one" in detail["test_wrong"]
    assert detail["test_crashes"] == "killed by SIGABRT"
    assert detail["test_hangs"] == "killed after 7 s"
    assert [(each["test"], each["line"]) for each in document["undecided"]] == [("test_suite.py::test_wrong", 21)]
    assert document["diff"].startswith(DIFF)
    assert document["diff"].count("\n-") == DIFF.count("\n-")
    environment = document["environment"]
    assert (environment["device"], environment["day"]) == ("cpu", date.today().isoformat())
    assert environment["versions"]["pytest"] == pytest.__version__
    assert (project / "list.yaml").read_text() == LIST
    assert not runs(int((project / "child").read_text()))


def test_one_failure_in_several_runs_keeps_the_entry(ask, ids):
    code, out, _ = ask("--n", "2", "--only", ids["test_every_other_time"], "--only", ids["test_mended_here"])

    assert code == 0
    assert "1 fixed, 1 still failing" in out
    assert "still failing" in out.splitlines()[1] or "still failing" in out.splitlines()[2]
    assert "no port was free" in out
    assert "fixed here, and it also holds for" in out
    assert "on cpu (cpu, cpu)" in out
    assert "--- a/" not in out


def test_the_text_ends_with_evidence_and_diff(ask, ids):
    driver = next(each.id for each in survey_text(LIST, Path("list.yaml")).entries if "driver" in str(each.when))
    code, out, _ = ask("--n", "1", "--only", ids["test_mended[*]"], "--only", driver)

    assert code == 4
    assert "may go: every test passed 1 of 1 times" in out
    assert DIFF in out
    assert f"{driver} test_suite.py::test_wrong: not run: driver unknown here, required driver < 500" in out


def test_options_of_pytest_and_collected_ids_are_the_callers(ask, ids, project):
    (project / "ids.txt").write_text("test_suite.py::test_mended[2]\n")

    code, out, _ = ask(
        "--n", "1", "--only", ids["test_mended[*]"], "--ids", "ids.txt", "--pytest-args", "-k nothing", "--json"
    )

    assert code == 0
    ((test,),) = [each["tests"] for each in json.loads(out)["entries"]]
    assert (test["id"], test["verdict"]) == ("test_suite.py::test_mended[2]", "not found")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--device", "h200"), 6, "h200: required a card of this machine, found "),
        (("--platform", "xpu"), 6, "required a card of this machine"),
        (("--platform", "cpuu"), 2, "platform"),
        (("--device", "h2000"), 2, "did you mean h200"),
        (("--only", "zzz"), 2, "--only zzz: required the id of an entry"),
    ],
    ids=["device", "platform", "unknown platform", "unknown device", "entry"],
)
def test_another_machines_card_and_wrong_names_are_one_line(ask, arguments, code, told):
    found, out, err = ask(*arguments)

    assert (found, out) == (code, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_card_that_is_not_here_gets_no_evidence(monkeypatch, tmp_path):
    monkeypatch.setenv("KVREG_HOME", str(tmp_path))
    monkeypatch.setenv("KVREG_DEVICE", "mi300x")

    assert place.where().device == "mi300x"
    with pytest.raises(DeviceUnavailable, match="mi300x"):
        place.here()
    assert place.here(device="cpu").device == "cpu"


def test_a_list_without_entries_is_an_empty_list():
    found = survey_text(LIST, Path("list.yaml"))

    text = without(found, {each.line for each in found.entries})

    assert text == (
        "# Exceptions of the suite.\nschema: 1\nexpectations: []\n\n"
        "# rounding: this one is worth a comment\n# what follows is really broken\n"
    )
    assert survey_text(text, Path("list.yaml")).entries == ()


def test_a_list_that_has_no_line_for_each_entry_is_left_alone():
    text = f"schema: 1\nexpectations: [{{test: a.py::test_x, when: everywhere, expect: xfail, reason: x, {COMMON}}}]\n"
    found = survey_text(text, Path("list.yaml"))

    assert without(found, {found.entries[0].line}) is None
