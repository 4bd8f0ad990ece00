"""A file of runners: what it says, and each way in which it is none, named by its place."""

import json
from pathlib import Path

import pytest
import yaml

from kvreg.ci.matrix import runners, schema
from kvreg.core.errors import BadFile


def test_a_file_is_read_whole(written):
    fleet = runners.read(written())

    first, second = fleet.runners
    assert (first.name, first.device, first.labels, first.queue) == (
        "first", "Toy Alpha", ("self-hosted", "alpha"), "alpha",
    )  # fmt: skip
    assert [(each.name, each.torch) for each in first.stacks] == [("newest", "2.13.0"), ("machine", None)]
    assert second.suite == runners.Suite("card", ("tests/card", "tests/test_all.py"), "gpu")
    assert (fleet.every_job, fleet.no_job) == (("core", "ci"), ("docs", "ci/notes.md"))


@pytest.mark.parametrize(
    ("changed", "first", "message"),
    [
        ({"schema": 2}, None, "schema: required 1, found 2; correct the file"),
        ({"runner": []}, None, "runner: required a known key, found none of that name; did you mean runners?"),
        ({"zzz": []}, None, "zzz: required a known key, found none of that name; known: schema, sources, paths, "),
        ({}, [{"lables": ["a"]}], "runners.0.lables: required a known key, found none of that name; did you mean la"),
        ({"sources": None}, None, "sources: required a list, found none; correct the file"),
        ({"paths": "ci"}, None, "paths: required a mapping, found 'ci'; correct the file"),
        ({}, [{"labels": []}], "runners.0.labels: required at least 1 of them, found []"),
        ({}, [{"suite": "cards"}], "first: required a word of suites, found cards; did you mean card?"),
        ({}, [{"stacks": ["newst"]}], "first: required a word of stacks, found newst; did you mean new"),
        ({}, [{}, {}], "runners: required a name each, found first twice; rename one"),
        (
            {"suites": {"card": {"tests": ["../elsewhere"]}}},
            None,
            "suites.card.tests.0: required a text of the form ^(",
        ),
        (
            {"stacks": {"newest": {"torch": 2.13}}},
            None,
            "stacks.newest.torch: required a text, found 2.13; correct the file",
        ),
    ],
)
def test_what_is_no_such_file_is_one_line_that_names_the_place(written, changed, first, message):
    path = written(changed, first)

    with pytest.raises(BadFile) as caught:
        runners.read(path)

    assert message in caught.value.message
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadFile, match="required a readable YAML file"):
        runners.read(tmp_path / "none.yaml")


def test_the_json_schema_takes_what_the_reader_takes(written):
    made = json.loads(schema.text())

    assert set(made["required"]) == {"schema", "sources", "paths", "stacks", "suites", "runners"}
    assert set(made["required"]) == set(yaml.safe_load(written().read_text()))
    assert made["additionalProperties"] is False


@pytest.mark.checkout
def test_the_committed_schema_is_current():
    path = Path(__file__).parents[3] / "ci" / "runners.schema.json"

    assert path.read_text() == schema.text(), "run: python ci/generate.py runners-schema"
