"""Without torch and Triton: words are judged first, then one line names the extra that brings them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]

EACH = """
import shlex
for name in ("torch", "triton", "numpy"):
    sys.modules[name] = None
from kvreg.cli.main import status
for words in sys.argv[1:]:
    print(status(shlex.split(words)), flush=True)
sys.exit()
"""
"""One process for all: each command's code in a line of its own."""


def test_commands_that_compile_or_run_kernels_end_with_6_and_name_the_extra(kvreg: Run) -> None:
    answer = kvreg(
        "validate --device cpu",
        "validate --compile --arch sm_90 --head-size 64",
        "tuned check --compile",
        "tune --device mi300x --op write",
        "tune --device mi300x --no-estimate",
        before=EACH,
    )

    assert answer.out.split() == ["6"] * 5
    *lines, absent = answer.err.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("pip install 'kvreg[kernels]'") for line in lines)
    assert absent.startswith("kvreg: tune mi300x --no-estimate: required that card in this machine")
    assert absent.endswith("or leave --no-estimate out")


def test_words_that_nobody_knows_end_with_2_before_anything_is_missed(kvreg: Run) -> None:
    answer = kvreg(
        "validate --compile --arch zz",
        "tune --device mi300x --budget 0",
        "tuned list --head-size -1",
        "tuned show --device h200 --mode int4_per_token_head --head-size 64 --variant triton-int4-decod",
        before=EACH,
    )

    assert answer.out.split() == ["2"] * 4
    lines = answer.err.splitlines()
    assert len(lines) == 4, lines  # no warning of a search that never began stands between them
    assert "--budget: required a time" in lines[1]
    assert lines[3].endswith("did you mean triton-int4-decode@1?")
