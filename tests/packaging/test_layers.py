"""The import contracts of pyproject.toml: they hold, and a wrong import that is planted breaks them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

# A file, a line for its end, and what the report names.
WRONG = [
    ("kvreg/core/near.py", "import torch", "torch"),
    ("kvreg/core/near.py", "def late():\n    import numpy", "numpy"),
    ("kvreg/core/near.py", "import kvreg.cli.render", "kvreg.cli.render"),
    ("kvreg/oracle/signs.py", "import kvreg.runtime.plan", "kvreg.runtime.plan"),
    ("kvreg/gate/limits.py", "from kvreg_triton import configs", "kvreg_triton.configs"),
    ("backends/kvreg_cpu/variants.py", "import kvreg.oracle.rotation", "kvreg.oracle.rotation"),
    ("backends/kvreg_cpu/variants.py", "import kvreg_triton.variants", "kvreg_triton.variants"),
    ("backends/kvreg_cuda/backend.py", "import kvreg_rocm.backend", "kvreg_rocm.backend"),
    ("backends/kvreg_triton/configs.py", "import kvreg_cuda.backend", "kvreg_cuda.backend"),
    ("tuning/kvreg_tuning/timing.py", "import kvreg.validation", "kvreg.validation"),
]


@pytest.fixture
def lint(copy_tree, process, tmp_path):
    source = copy_tree(tmp_path / "source")
    script = Path(sys.executable).parent / "lint-imports"
    if not script.exists():
        pytest.fail(f"{script} is missing; install kvreg's extra dev")

    def run(codes):
        tree = ":".join(str(source / name) for name in ("", "backends", "tuning"))
        shutil.rmtree(source / ".import_linter_cache", ignore_errors=True)
        return process([str(script)], cwd=source, environment={"PYTHONPATH": tree}, codes=codes).stdout

    run.source = source
    return run


def test_the_tree_keeps_its_contracts(lint):
    assert "0 broken" in lint((0,))


@pytest.mark.parametrize(("file", "line", "named"), WRONG, ids=[f"{file}-{named}" for file, _, named in WRONG])
def test_a_planted_import_breaks_a_contract(lint, file, line, named):
    (lint.source / file).open("a").write(f"\n\n{line}\n")

    report = lint((1,))

    assert "0 broken" not in report
    assert named in report
