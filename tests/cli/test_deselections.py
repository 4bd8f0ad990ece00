"""`kvreg deselections`: the figures of a list, one entry, and the check of a list in every kind of its findings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvreg.cli.main import status

GOLDEN = Path(__file__).parents[1] / "golden" / "deselections"
KINDS = sorted(path.stem for path in GOLDEN.glob("*.txt") if path.stem != "test-ids")
CODES = {
    *("bad_entry", "unknown_word", "no_reason", "no_issue", "no_owner", "no_added", "no_review_by", "no_kind"),
    *("expired", "dead", "wide", "hits", "duplicate", "shadowed", "overlap", "order"),
    *("ahead", "reversed", "far"),
}
AS_OF = ("--as-of", "2026-11-29")

LIST = """\
schema: 1
expectations:
- test: tests/a.py::test_x[int4-*]
  when: {platform: xpu}
  expect: xfail
  reason: wrong result
  issue: https://example.org/issues/7
  owner: kernels
  added: 2026-08-01
  review_by: 2026-12-15
  invalidates: [triton-int4-decode@1]
- test: tests/a.py::test_y
  when: {device: b580, memory_gib: "< 16"}
  expect: skip
  kind: oom
  reason: the pool needs 14 GiB
  issue: https://example.org/issues/8
  owner: kernels
  added: 2026-09-01
  review_by: 2026-11-01
  evidence: {seen: 14.2 GiB}
- test: tests/b.py::test_z
  when: {platform: [cuda, rocm], triton: "< 3.8"}
  expect: flaky
  reason: depends on the order
  issue: https://example.org/issues/7
  owner: runtime
  added: 2026-10-01
  review_by: 2027-06-01
"""


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
        code = status(["deselections", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text(LIST)
    return path


@pytest.mark.parametrize(("lines", "told"), [(1, "1 fault makes"), (2, "2 faults make")])
def test_faults_are_counted_in_words_that_agree(ask, listed, lines, told):
    listed.write_text(LIST + "- {test: tests/c.py::test_w, when: everywhere, expect: never}\n" * lines)

    code, out, _ = ask("--file", listed.name)

    assert code == 0
    assert f"\n{told} entries unusable: `kvreg deselections check --file list.yaml` names them\n" in out


# --- the check ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_finding_reads_as_its_golden_document(ask, tmp_path, kind):
    for name in (f"{kind}.yaml", "test-ids.txt"):
        shutil.copy(GOLDEN / name, tmp_path)

    code, out, err = ask("check", "--file", f"{kind}.yaml", *AS_OF)

    assert (out, err) == ((GOLDEN / f"{kind}.txt").read_text(), "")
    assert code == (0 if kind == "clean" else 4)


@pytest.mark.parametrize("kind", KINDS)
def test_fix_mends_what_is_mechanical_and_nothing_else(ask, tmp_path, kind):
    for name in (f"{kind}.yaml", "test-ids.txt"):
        shutil.copy(GOLDEN / name, tmp_path)
    mended = GOLDEN / f"{kind}.fixed.yaml"
    wanted = mended if mended.exists() else GOLDEN / f"{kind}.yaml"

    ask("check", "--fix", "--file", f"{kind}.yaml", *AS_OF)

    assert (tmp_path / f"{kind}.yaml").read_text() == wanted.read_text()
    before = sorted(line for line in (GOLDEN / f"{kind}.yaml").read_text().splitlines() if "#" in line)
    assert sorted(line for line in wanted.read_text().splitlines() if "#" in line) == before


def test_every_code_has_a_golden_document():
    lines = [line for kind in KINDS for line in (GOLDEN / f"{kind}.txt").read_text().splitlines()]
    shown = {line.split(": ")[1] for line in lines if not line.startswith("--fix") and ": tests/" in line}

    assert shown == CODES


def test_a_dead_id_names_its_line_and_the_id_that_it_became(ask, tmp_path):
    """Handed case 14: the test gained a parameter, so the id in the list is no id any more."""
    for name in ("dead.yaml", "test-ids.txt"):
        shutil.copy(GOLDEN / name, tmp_path)

    code, out, _ = ask("check", "--file", "dead.yaml", *AS_OF, "--json")

    assert code == 4
    first = json.loads(out)["findings"][0]
    assert (first["code"], first["line"], first["fixable"]) == ("dead", 4, True)
    assert first["test"].endswith("[int4-16-128-num_heads0-seq_lens1]")
    assert first["candidates"] == ["tests/attention/test_int4.py::test_attend[False-int4-16-128-num_heads0-seq_lens1]"]


def test_the_check_runs_no_test_and_loads_no_torch(kvreg, tmp_path):
    for name in ("clean.yaml", "test-ids.txt"):
        shutil.copy(GOLDEN / name, tmp_path)
    loaded = "import atexit; atexit.register(lambda: print({'torch', 'triton', 'pytest'} & set(sys.modules)))"

    answer = kvreg("deselections", "check", "--file", str(tmp_path / "clean.yaml"), *AS_OF, before=loaded)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == "set()"


def test_without_ids_nothing_is_said_of_dead_entries_but_that_they_were_not_looked_at(ask, tmp_path):
    shutil.copy(GOLDEN / "dead.yaml", tmp_path)

    code, out, _ = ask("check", "--file", "dead.yaml", *AS_OF)

    assert code == 0
    assert "against no ids (name some with --ids)" in out


def test_other_ids_can_be_named(ask, listed, tmp_path):
    (tmp_path / "mine.txt").write_text("tests/a.py::test_x[int4-16]\ntests/a.py::test_y\ntests/b.py::test_z\n")

    code, out, _ = ask("check", "--file", str(listed), "--ids", "mine.txt", "--as-of", "2026-10-01", "--json")

    assert (code, json.loads(out)["ids"]) == (0, 3)


def test_a_gained_parameter_with_two_values_is_proposed_and_not_fixed(ask, tmp_path):
    shutil.copy(GOLDEN / "dead.yaml", tmp_path)
    ids = (GOLDEN / "test-ids.txt").read_text()
    (tmp_path / "test-ids.txt").write_text(ids + ids.replace("[False-", "[True-"))

    _, out, _ = ask("check", "--fix", "--file", "dead.yaml", *AS_OF, "--json")

    first = next(each for each in json.loads(out)["findings"] if each["line"] == 4)
    assert (len(first["candidates"]), first["fixable"]) == (2, False)


def test_a_mended_id_goes_to_its_place(ask, tmp_path):
    (tmp_path / "list.yaml").write_text(LIST.replace("tests/a.py::test_y", "old/a.py::test_y"))
    (tmp_path / "ids.txt").write_text("tests/a.py::test_x[int4-16]\ntests/a.py::test_y\ntests/b.py::test_z\n")

    code, out, _ = ask("check", "--fix", "--file", "list.yaml", "--ids", "ids.txt", "--as-of", "2026-10-01")

    assert code == 0, out
    assert (tmp_path / "list.yaml").read_text() == LIST


@pytest.mark.parametrize(
    "text",
    [
        "schema: 1\nexpectations: [{test: 'old/a.py::t', when: everywhere, expect: xfail}]\n",
        "expectations:\n- {test: &t old/a.py::t, when: everywhere, expect: xfail, reason: *t}\nschema: 1\n",
    ],
)
def test_a_form_that_cannot_be_edited_by_line_is_left_alone_and_said(ask, tmp_path, text):
    (tmp_path / "list.yaml").write_text(text)
    (tmp_path / "ids.txt").write_text("new/a.py::t\n")

    code, out, _ = ask("check", "--fix", "--file", "list.yaml", "--ids", "ids.txt")

    assert code == 4
    assert (tmp_path / "list.yaml").read_text() == text
    assert "nothing was mended: " in out


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("- test: 'old/a.py::t[it''s]'\n", None),
        ('- test: "old/a.py::t[b]"  # why\n', '- test: "new/a.py::t[b]"  # why\n'),
        ("- expect: xfail\n  test: old/a.py::t[b]\n", "- expect: xfail\n  test: new/a.py::t[b]\n"),
        ("-\n  test: old/a.py::t[b]\n", "-\n  test: new/a.py::t[b]\n"),
        ("- {test: 'old/a.py::t[b]', owner: a}\n", "- {test: 'new/a.py::t[b]', owner: a}\n"),
    ],
)
def test_a_new_id_is_quoted_as_the_old_one_was(ask, tmp_path, entry, wanted):
    def whole(text):
        rest = "" if "expect" in text else "  expect: xfail\n"
        if text.startswith("- {"):
            return "schema: 1\nexpectations:\n" + text.replace("}", ", when: everywhere, expect: xfail}")
        return "schema: 1\nexpectations:\n" + text + rest + "  when: everywhere\n"

    (tmp_path / "list.yaml").write_text(whole(entry))
    (tmp_path / "ids.txt").write_text("new/a.py::t[b]\nnew/a.py::t[it's]\n")

    ask("check", "--fix", "--file", "list.yaml", "--ids", "ids.txt")

    assert (tmp_path / "list.yaml").read_text() == whole(wanted or entry)


def test_a_list_keeps_its_line_ends_and_the_link_that_leads_to_it(ask, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "list.yaml").write_bytes((GOLDEN / "hits.yaml").read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / "list.yaml").symlink_to("there/list.yaml")

    code, out, _ = ask("check", "--fix", "--file", "list.yaml", "--ids", str(GOLDEN / "test-ids.txt"), *AS_OF)

    assert code == 0, out
    assert (tmp_path / "list.yaml").is_symlink()
    wanted = (GOLDEN / "hits.fixed.yaml").read_bytes().replace(b"\n", b"\r\n")
    assert (tmp_path / "there" / "list.yaml").read_bytes() == wanted


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "schema: 2\nexpectations: []\n"])
def test_a_file_that_is_no_list_ends_with_2(ask, tmp_path, text):
    (tmp_path / "list.yaml").write_text(text)

    for form in ((), ("--json",)):
        code, out, err = ask("check", "--file", "list.yaml", *form)

        assert code == 2
        assert len((out if form else err).splitlines()) >= 1
        assert (json.loads(out)["error"]["code"] if form else err.split(":")[0]) == ("bad_file" if form else "kvreg")


@pytest.mark.parametrize("content", ["", "3 tests collected in 1s\n"])
def test_ids_that_are_none_end_with_2(ask, listed, tmp_path, content):
    (tmp_path / "ids.txt").write_text(content)

    code, _, err = ask("check", "--file", str(listed), "--ids", "ids.txt")

    assert code == 2
    assert "pytest --collect-only -q" in err


def test_what_a_list_says_cannot_steer_the_terminal(ask, tmp_path):
    (tmp_path / "list.yaml").write_text(
        'schema: 1\nexpectations:\n- test: "a.py::t[\\e[31m\\r]"\n  when: everywhere\n'
    )

    code, out, _ = ask("check", "--file", "list.yaml")

    assert code == 4
    assert not {"\x1b", "\r"} & set(out)
    assert "a.py::t[\\x1b[31m\\r]" in out


# --- figures --------------------------------------------------------------------------------------------------------


def test_the_figures_are_by_platform_and_device(ask, listed):
    code, out, err = ask("--file", str(listed), *AS_OF, "--json")

    assert (code, err) == (0, "")
    document = json.loads(out)
    rows = {(each["platform"], each["device"]): each for each in document["places"]}
    assert set(rows) == {("cuda", None), ("rocm", None), ("xpu", None), ("xpu", "b580")}
    xpu = rows["xpu", None]
    assert (xpu["entries"], xpu["by_word"], xpu["oldest"]) == (2, {"skip (oom)": 1, "xfail": 1}, "2026-08-01")
    assert (xpu["expired"], xpu["due"], xpu["invalidated"]) == (1, 1, ["triton-int4-decode@1"])
    assert rows["cuda", None]["by_word"] == {"flaky": 1}
    assert [(each["issue"][-1], each["entries"]) for each in document["issues"]] == [("7", 2), ("8", 1)]
    assert document["invalidated"] == [{"variant": "triton-int4-decode@1", "id": document["entries"][0]["id"]}]


@pytest.mark.parametrize(
    ("arguments", "tests"),
    [
        (("--platform", "xpu"), {"test_x[int4-*]", "test_y"}),
        (("--platform", "cuda"), {"test_z"}),
        (("--platform", "cpu"), set()),
        (("--device", "b580"), {"test_x[int4-*]", "test_y"}),
        (("--device", "Intel Arc Pro B60"), {"test_x[int4-*]"}),
        (("--device", "h200"), {"test_z"}),
    ],
)
def test_a_place_has_the_entries_that_can_hold_there(ask, listed, arguments, tests):
    _, out, _ = ask("--file", str(listed), *arguments, "--json")

    assert {each["test"].partition("::")[2] for each in json.loads(out)["entries"]} == tests


def test_the_tables_are_plain_text_and_name_the_next_command(ask, listed):
    code, out, _ = ask("--file", str(listed), *AS_OF)

    assert code == 0
    assert f"{listed}: 3 entries as of 2026-11-29" in out
    assert "2026-11-01 (expired)" in out
    assert out.splitlines()[-1].startswith("kvreg deselections show ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--platform", "xpo"), "did you mean xpu?"),
        (("--platform", "cuda", "--device", "b580"), "required one of cuda, found one of xpu"),
        (("--as-of", "soon"), "YYYY-MM-DD"),
        (("--file", "list.yaml", "check"), "--file goes behind check"),
    ],
)
def test_a_wrong_place_or_day_is_one_line(ask, listed, arguments, words):
    code, out, err = ask(*arguments)

    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_kvregs_own_list_is_the_default(kvreg):
    answer = kvreg("deselections", "--json")

    assert (answer.code, answer.err) == (0, "")
    assert answer.document["file"].endswith("expectations.yaml")


# --- one entry ------------------------------------------------------------------------------------------------------


def test_show_takes_an_id_its_start_a_line_or_a_test(ask, listed):
    _, out, _ = ask("--file", str(listed), "--json")
    wanted = json.loads(out)["entries"][1]

    for name in (wanted["id"], wanted["id"][:6], "12", "tests/a.py::test_y"):
        _, shown, _ = ask("show", name, "--file", str(listed), *AS_OF, "--json")
        assert json.loads(shown)["entry"] == {**wanted, "expired": True}


def test_show_says_all_that_an_entry_says(ask, listed):
    _, out, _ = ask("show", "tests/a.py::test_y", "--file", str(listed), *AS_OF)

    for words in (
        "kind: oom",
        "the pool needs 14 GiB",
        "device b580, memory_gib < 16",
        "seen: 14.2 GiB",
        ":12, expired",
    ):
        assert words in out


def test_show_of_an_unknown_entry_offers_the_nearest(ask, listed):
    code, _, err = ask("show", "tests/a.py::test_yy", "--file", str(listed))

    assert code == 2
    assert "did you mean tests/a.py::test_y" in err


def test_without_pytest_unskip_names_it_in_one_line(kvreg):
    hidden = "import sys; sys.modules.update({'pytest': None, 'kvreg.pytest': None})"

    answer = kvreg("deselections", "unskip", before=hidden)

    assert (answer.code, answer.out) == (6, "")
    assert answer.err.startswith("kvreg: deselections unskip: required pytest, found no module")
    assert answer.err.endswith("pip install pytest\n")
