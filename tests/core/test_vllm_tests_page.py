"""The page that maps vLLM's tests to ours names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

import kvreg

ROOT = Path(kvreg.__file__).parent.parent
PAGE = ROOT / "docs" / "vllm-tests.md"
NAMED = re.compile(r"`(tests/(?:core|cli|gate|kernels|oracle|runtime|validation)/[a-z_]+\.py)(?:::(\w+))?`")
ANY_ID = re.compile(r"`(tests/[^`]+::[^`]+)`")
"""What looks like one of our tests, wherever it lies; vLLM's are named without their file."""

pytestmark = pytest.mark.checkout


def functions(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists():
    named = set(NAMED.findall(PAGE.read_text()))

    gone = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or (name and name not in functions(ROOT / path))
    ]
    assert {f"{path}::{name}" for path, name in named if name} == set(ANY_ID.findall(PAGE.read_text()))
    assert len(named) > 20
    assert gone == []


def test_every_row_of_a_mapping_names_a_test_or_is_refused():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    kept = PAGE.read_text().split("## What is refused")[0]

    assert len(rows) == 21
    assert [row for row in rows if row in kept and not NAMED.search(row)] == []
