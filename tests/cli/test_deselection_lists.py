"""`kvreg deselections import` and `export` as commands: what is printed, what is written, and how a misuse ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvreg.cli.main import status

GOLDEN = Path(__file__).parents[1] / "golden" / "lists"
AT = ("--format", "arguments", "--platform", "xpu", "--at")


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def ask(warm_home, tmp_path, monkeypatch, capsys):
    """Run the command in this process, in a folder of its own; (exit code, stdout, stderr)."""
    monkeypatch.setenv("KVREG_HOME", str(warm_home))
    monkeypatch.delenv("KVREG_DEVICE", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = status(["deselections", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_an_import_writes_a_list_that_can_be_checked_and_says_what_it_lacks(ask, tmp_path):
    code, out, err = ask("import", GOLDEN / "buildkite.yaml", "--output", "list.yaml")

    assert (code, err) == (0, "")
    assert (tmp_path / "list.yaml").read_text() == (GOLDEN / "buildkite.list.yaml").read_text()
    assert "missing, and not invented: kind of 6, reason of 5, issue of 5" in out
    assert ask("check", "--file", "list.yaml")[0] == 4
    assert out.splitlines()[-1] == "kvreg deselections check --file list.yaml"


def test_an_import_as_json_holds_all_of_it(ask):
    code, out, _ = ask("import", GOLDEN / "buildkite.yaml", "--json")

    document = json.loads(out)
    assert (code, len(document["entries"]), len(document["left_out"])) == (0, 6, 10)
    window = next(each for each in document["entries"] if "sliding_window" in each["test"])
    assert (window["source"]["line"], window["issue"]) == (19, "https://github.com/example/engine/issues/12")
    mixtral = next(each for each in document["entries"] if "mixtral" in each["test"])
    assert mixtral["source"]["remark"] == "soft_fail; a failure is swallowed by `|| true`"
    assert mixtral["missing"] == ["kind", "reason", "issue", "owner", "added", "review_by"]
    assert {"label": ":intel: (BMG) LoRA", "guess": "bmg read as arch bmg"} in document["guesses"]


def test_a_page_of_an_import_names_every_entry_and_what_was_left_out(ask, tmp_path):
    ask("import", GOLDEN / "buildkite.yaml", "--report", "page.md", "--title", "Engine")

    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Engine\n")
    assert "| `tests/lora/test_mixtral.py::test_mixtral_lora[4]` | arch bmg | - | buildkite.yaml:31 |" in page
    assert "### A job runs it by name: a split, not an exception" in page


@pytest.mark.parametrize(
    ("source", "more", "count"),
    [
        ("github.yml", (), 2),
        ("amd.sh", (), 0),
        ("skiplist", (), 6),
        ("disabled.json", (), 5),
        ("array-api-xfails.txt", ("--from", "array-api", "--platform", "cpu"), 2),
    ],
)
def test_a_format_is_known_by_its_name_or_told(ask, source, more, count):
    code, out, _ = ask("import", GOLDEN / source, *more, "--json")

    assert (code, len(json.loads(out)["entries"])) == (0, count)


def test_hidden_files_of_an_import_are_found_by_the_check(ask, tmp_path):
    """PyTorch's lists say `__main__` for a file: the one test of that name is its sure successor."""
    (tmp_path / "ids.txt").write_text(
        "test/test_nn.py::TestNN::test_Conv2d_no_bias_cuda_tf32\ntest/a.py::TestMin::x\n"
    )
    ask("import", GOLDEN / "disabled.json", "--output", "list.yaml")

    ask("check", "--fix", "--file", "list.yaml", "--ids", "ids.txt")

    assert "test/test_nn.py::TestNN::test_Conv2d_no_bias_cuda_tf32[*]" in (tmp_path / "list.yaml").read_text()


def test_an_export_is_the_list_and_nothing_else_on_standard_output(ask):
    code, out, err = ask(
        *("export", "--format", "arguments", "--file", GOLDEN / "buildkite.list.yaml", "--device", "b580")
    )

    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if not line.startswith("--deselect=tests/")] == []
    assert len(out.splitlines()) == 6


def test_an_export_says_on_stderr_what_it_leaves_out(ask, tmp_path):
    code, out, err = ask(
        *("export", "--format", "array-api-xfails", "--file", GOLDEN / "buildkite.list.yaml", "--device", "b580")
    )

    assert (code, out) == (0, "")
    assert err.count("skip has a file of its own") == 6


def test_pytest_reads_an_export(ask, tmp_path):
    """The arguments are made for `pytest @FILE`: blanks and brackets need no quotes."""
    (tmp_path / "test_x.py").write_text(
        "import pytest\n@pytest.mark.parametrize('a', ['x [y] z', 'other'])\ndef test_t(a): pass\ndef test_u(): pass\n"
    )
    (tmp_path / "list.yaml").write_text(
        "schema: 1\nexpectations:\n"
        '- {test: "test_x.py::test_t[x [y] z]", when: everywhere, expect: skip}\n'
        "- {test: test_x.py::test_u, when: {platform: cpu}, expect: xfail}\n"
    )
    options = ("--format", "arguments", "--file", "list.yaml", "--platform", "cpu", "--output", "args.txt")
    assert ask("export", *options)[0] == 0

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "@args.txt"]
    done = subprocess.run([*command, "test_x.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[0] == "test_x.py::test_t[other]"
    assert "2 deselected" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("import", "nothing"), "required a file or folder"),
        (("import", GOLDEN / "array-api-skips.txt"), "required --from"),
        (("import", GOLDEN / "none.txt", "--from", "array-api"), "a readable text file"),
        (("import", GOLDEN / "buildkite.yaml", "--platform", "xpu"), "are for lists that say no place"),
        (("import", GOLDEN / "buildkite.yaml", "--output", "no/such/list.yaml"), "a folder that is there"),
        (("export", "--format", "arguments"), "required --platform or --device"),
        (("export", *AT, "tritn=3"), "did you mean triton?"),
        (("export", *AT, "memory_gib=big"), "GiB as a number"),
        (("export", *AT, "memory_gib=nan"), "GiB as a number"),
        (("export", *AT, "memory_gib"), "found no value; say memory_gib=24"),
        (("export", *AT, "memory_gib="), "--at memory_gib=: required WORD=VALUE, found no value"),
        (("export", *AT, "triton"), "required WORD=VALUE, found no value; say triton=3.8"),
        (("export", *AT, "memory_gib=8", "--at", "memory_gib=9"), "--at memory_gib: required once, found 2 times"),
        (("export", *AT, "torch=2.9", "--at", "triton=3", "--at", "torch=2.9"), "--at torch: required once, found 2"),
        (("export", "--format", "argument"), "is not one of"),
    ],
)
def test_a_misuse_is_one_line_and_exit_2(ask, arguments, words):
    code, out, err = ask(*arguments)

    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
