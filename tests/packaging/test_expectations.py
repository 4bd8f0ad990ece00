"""kvreg's own list of exceptions is clean, its schema and the ids of the tests are current."""

from __future__ import annotations

import json
import subprocess
from datetime import date

import pytest

from kvreg.core.expectations import schema
from kvreg.core.expectations.collected import read_ids
from kvreg.core.expectations.files import survey
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.lint import check
from kvreg.core.expectations.node_ids import file_of

pytestmark = pytest.mark.checkout


def test_the_list_is_clean_as_of_the_commit(root):
    """As of the commit's day: a commit that passed passes for ever; the scheduled check asks for today."""
    git = ["git", "-C", str(root), "log", "-1", "--format=%cs"]
    day = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    as_of = date.fromisoformat(day) if day else date.today()

    findings = check(
        survey(root / "ci" / "expectations.yaml"), Known.installed(), as_of, read_ids(root / "ci" / "test-ids.txt")
    )

    assert findings == ()


def test_the_schema_is_generated_from_the_model_and_current(root):
    path = root / "ci" / "expectations.schema.json"

    assert path.read_text() == schema.text(), "run: python ci/generate.py expectations-schema"
    assert set(json.loads(schema.text())["$defs"]["Entry"]["required"]) == {
        *("test", "when", "expect", "reason", "issue", "owner", "added", "review_by"),
    }


def test_the_ids_of_the_tests_are_current(root, collected, pytestconfig):
    """Of the files that this run has collected; a run without paths collects all of them."""
    if any("::" in argument for argument in pytestconfig.args):
        pytest.skip("this run has collected parts of files")
    recorded = (root / "ci" / "test-ids.txt").read_text().splitlines()
    whole = pytestconfig.args == pytestconfig.getini("testpaths")
    files = {file_of(node_id) for node_id in collected}
    wanted = {node_id for node_id in recorded if whole or file_of(node_id) in files}

    missing, gone = sorted(set(collected) - wanted), sorted(wanted - set(collected))

    assert (missing[:5], gone[:5]) == ([], []), "run: python ci/generate.py test-ids"
    assert recorded == sorted(set(recorded))
