"""Foreign lists as drafts: golden documents of every format, what ids add, and what is never widened or invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg.ci.lists import pipelines, pytorch, skip_lists
from kvreg.ci.lists.drafts import drafts
from kvreg.ci.lists.exclusions import Exclusion, How, Place, reason_and_issue
from kvreg.ci.lists.guesses import Guesser
from kvreg.core.errors import BadFile
from kvreg.core.expectations import writing
from kvreg.core.expectations.files import survey
from kvreg.core.expectations.matching import IdIndex
from kvreg.core.expectations.predicates import parse
from kvreg.core.index import devices

GOLDEN = Path(__file__).parents[2] / "golden" / "lists"
XPU = Place("xpu", parse({"platform": "xpu"}))


@pytest.fixture(scope="module")
def guesser():
    return Guesser(devices())


@pytest.fixture
def read(guesser):
    def reader(name):
        path = GOLDEN / name
        if name == "skiplist":
            return drafts(skip_lists.read_intel(path, guesser))
        if name == "disabled.json":
            return drafts(pytorch.read_disabled(path))
        if name.startswith("array-api"):
            return drafts(skip_lists.read_array_api(path, Place("cpu", parse({"platform": "cpu"}))))
        found = pipelines.read_pipelines([path], guesser, GOLDEN)
        return drafts(found.exclusions, found.named)

    return reader


SOURCES = ["buildkite.yaml", "github.yml", "amd.sh", "skiplist", "disabled.json"]


@pytest.mark.parametrize("name", [*SOURCES, "array-api-xfails.txt", "array-api-skips.txt"])
def test_a_list_reads_as_its_golden_document(read, name):
    found = read(name)

    whole = (GOLDEN / f"{name.partition('.')[0]}.list.yaml").read_text()
    assert writing.text(found.entries) == "".join(line for line in whole.splitlines(True) if not line.startswith("#"))


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_left_out_is_named_with_its_place_and_reason(read, name):
    lines = [
        f"{each.exclusion.file}:{each.exclusion.line}: {each.exclusion.how} {each.exclusion.text}: {each.why}\n"
        for each in read(name).left_out
    ]

    assert "".join(lines) == (GOLDEN / f"{name.partition('.')[0]}.left-out.txt").read_text()


def test_a_line_names_where_the_text_stands(read):
    for each in read("buildkite.yaml").exclusions:
        written = each.text.removeprefix("tests/") if each.how is How.IGNORE else each.text
        assert written in (GOLDEN / "buildkite.yaml").read_text().splitlines()[each.line - 1]


def test_what_a_list_does_not_say_is_counted_and_not_invented(read, tmp_path):
    found = read("buildkite.yaml")
    path = tmp_path / "list.yaml"
    path.write_text(writing.text(found.entries))

    codes = [fault.code for fault in survey(path).faults]

    assert found.missing == {"kind": 6, "reason": 5, "issue": 5, "owner": 6, "added": 6, "review_by": 6}
    assert {name: codes.count(f"no_{name}") for name in found.missing} == found.missing
    assert not any(fault.is_grave for fault in survey(path).faults)


def test_a_place_read_from_a_label_is_a_guess_and_listed(read):
    assert read("buildkite.yaml").guesses[":intel: (BMG) LoRA"] == "bmg read as arch bmg"
    assert read("array-api-skips.txt").guesses == {}


@pytest.mark.parametrize(
    ("label", "hints", "when"),
    [
        (":intel: (BMG) Quantization", ("intel_gpu",), "arch bmg"),
        ("x", ("h200_35gb",), "device [h200/mig-1g.35gb, h200/mig-2g.35gb]"),
        ("x", ("h200_18gb",), "device h200/mig-1g.18gb"),
        ("x", ("b200-k8s",), "device b200"),
        ("x", ("mi355_dpx",), "device mi355x"),
        ("x", ("mi300_4",), "device mi300x"),
        ("x", ("a100",), "arch sm_80"),
        ("x", ("dgx-spark",), "device gb10"),
        ("x", ("intel_cpu",), "platform cpu"),
        (":amd: build", (), "platform rocm"),
        ("x", ("intel_hpu",), "None"),
        ("x", ("ascend_npu",), "None"),
        ("Unit tests", ("ubuntu-24.04",), "None"),
    ],
)
def test_what_words_of_jobs_are_taken_for(guesser, label, hints, when):
    assert str(guesser.place(label, hints).when) == when


@pytest.mark.parametrize(
    ("comment", "reason", "issue"),
    [
        ("wrong: https://x.org/1", "wrong", "https://x.org/1"),
        ("https://x.org/1", "", "https://x.org/1"),
        ("Out of registers, see a/b#3.", "Out of registers", "a/b#3"),
        ("see https://x.org/1 for why", "see https://x.org/1 for why", "https://x.org/1"),
        ("test_scaled_dot", "", ""),
        ("Other", "Other", ""),
    ],
)
def test_a_comment_is_a_reason_and_an_issue(comment, reason, issue):
    assert reason_and_issue(comment) == (reason, issue)


IDS = IdIndex(
    [
        "tests/kernels/quant/test_gptq.py::test_a[1]",
        "tests/kernels/quant/test_gptq.py::test_a[2]",
        "tests/kernels/quant/test_awq.py::test_a",
        "tests/v1/sample/test_topk.py::test_topk_only",
        "tests/v1/sample/test_topk.py::test_topk_and_topp[a]",
        "tests/v1/sample/test_topk.py::test_topk_and_topp[b]",
        "tests/v1/other.py::test_topk_only",
    ]
)


@pytest.mark.parametrize(
    ("how", "text", "paths", "entries"),
    [
        (How.IGNORE, "tests/kernels/quant", (), ["test_awq.py::test_a", "test_gptq.py::test_a[*]"]),
        (How.IGNORE, "kernels/quant/test_awq.py", (), ["test_awq.py::test_a"]),
        (How.IGNORE, "tests/kernels/qua", (), []),
        (How.KEYWORD, "test_topk_only", ("v1/sample",), ["test_topk.py::test_topk_only"]),
        (How.KEYWORD, "TOPP", (), ["test_topk.py::test_topk_and_topp[*]"]),
        (How.REGEXP, "tests/kernels/quant/.*gptq.*", (), ["test_gptq.py::test_a[*]"]),
        (How.REGEXP, "(", (), []),
        (How.DESELECT, "quant/test_gptq.py::test_a[2]", (), ["test_gptq.py::test_a[2]"]),
        (
            How.DESELECT,
            "tests/v1/sample/test_topk.py::test_topk_and_topp",
            (),
            ["test_topk.py::test_topk_and_topp[*]"],
        ),
        (How.DESELECT, "tests/v1/sample/test_topk.py::test_topk", (), []),
    ],
)
def test_collected_ids_tell_what_a_folder_a_keyword_or_an_expression_takes(how, text, paths, entries):
    found = drafts([Exclusion(how, text, Path("x"), 1, XPU, paths=paths)], ids=IDS)

    assert [entry.test.rpartition("/")[2] for entry in found.entries] == entries
    assert bool(found.left_out) is not bool(entries)


def test_one_test_at_one_place_is_one_entry_and_takes_the_first_reason_there_is():
    said = [Exclusion(How.DESELECT, "a.py::t[1]", Path("x"), line, XPU, reason=reason) for line, reason in
            [(1, ""), (2, "wrong"), (3, "other")]]  # fmt: skip

    (only,) = drafts(said).entries

    assert only.reason == "wrong"


def test_a_test_that_another_place_runs_by_name_is_still_left_out_here():
    exclusion = Exclusion(How.DESELECT, "tests/a.py::t[1]", Path("x"), 1, XPU)

    assert len(drafts([exclusion], [("a.py::t[1]", "platform cuda")]).entries) == 1
    assert len(drafts([exclusion], [("a.py::t[1]", "platform xpu")]).entries) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": ["1", 2, []]}', "{"])
def test_json_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(BadFile, match="required"):
        pytorch.read_disabled(tmp_path / "a.json")


def test_yaml_without_jobs_leaves_nothing_out(tmp_path, guesser):
    for text in ("a: 1\n", "- a\n", "steps: {a: b}\n", "jobs: [1]\n", "steps: [wait, {command: 5}]\n"):
        (tmp_path / "a.yaml").write_text(text)

        assert pipelines.read_pipelines([tmp_path / "a.yaml"], guesser).exclusions == ()


@pytest.mark.parametrize(
    ("line", "test", "reason"),
    [
        ("a.py::t # slow", "a.py::t[*]", "slow"),
        ("a.py::t[x y]  # slow [sic]", "a.py::t[x y]", "slow [sic]"),
        ("a.py::t[x #y]", "a.py::t[x #y]", ""),
        ("a.py::t[a[0] is -0 -> +0]", "a.py::t[a[0] is -0 -> +0]", ""),
        ("a.py::t[x * y]", r"a.py::t[x \* y]", ""),
    ],
)
def test_a_line_of_a_skip_list_may_have_a_comment_behind_it(tmp_path, line, test, reason):
    (tmp_path / "skips.txt").write_text(f"{line}\n")

    (only,) = drafts(skip_lists.read_array_api(tmp_path / "skips.txt", XPU)).entries

    assert (only.test, only.reason) == (test, reason)


def test_a_comment_reaches_to_the_next_comment_or_empty_line(tmp_path):
    (tmp_path / "skips.txt").write_text(
        "# of both\n# lines\na.py::a\na.py::b\n# its own\na.py::c\n\na.py::d\n# a heading\n\na.py::e\n"
    )

    found = drafts(skip_lists.read_array_api(tmp_path / "skips.txt", XPU)).entries

    assert [each.reason for each in found] == ["of both lines", "of both lines", "its own", "", ""]


def test_a_folder_that_is_no_known_word_holds_where_it_is_told_to(guesser):
    folder = GOLDEN / "skiplist" / "arl-h"

    assert drafts(skip_lists.read_intel(folder, guesser)).entries == ()
    (only,) = drafts(skip_lists.read_intel(folder, guesser, parse({"platform": "xpu"}))).entries
    assert (str(only.when), only.reason) == ("platform xpu", "Long running tests")
