"""The command of random calls: the same cases for the same seed, every kind of failure typed and repeatable."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvreg.core import resolve
from kvreg.core.layouts import known
from kvreg.core.modes import Mode
from kvreg.runtime.launchers import load
from kvreg.testing.features import DRAWN
from kvreg.validation import fuzz
from kvreg.validation.fuzz_cases import FAMILY, LIMITS, Case, draw
from kvreg.validation.fuzz_judge import batch_of, judge, judge_numbers, selection_of
from kvreg.validation.unproven import Place, place_of

MANY = [draw(7, number, LIMITS["card"]) for number in range(0, 40 * FAMILY, 5)]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvreg.validation.fuzz", *arguments], capture_output=True, text=True, timeout=240
    )


def test_a_case_follows_from_its_seed_and_number_alone():
    for number in (0, 1, 24, 25, 999):
        case = draw(3, number, LIMITS["cpu"])
        assert case == draw(3, number, LIMITS["cpu"])
        assert case != draw(4, number, LIMITS["cpu"])
        assert Case.from_text(case.to_text()) == case


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"mode": "none"}'])
def test_a_text_that_is_no_case_is_refused(text):
    with pytest.raises(ValueError, match="case: required the JSON of a case"):
        Case.from_text(text)


def test_the_cases_of_a_family_share_what_a_kernel_is_compiled_for():
    first, *others = (draw(0, number, LIMITS["card"]) for number in range(50, 75))
    for other in others:
        same = ("mode", "layout", "head_size", "group", "kv_heads", "page", "dtype", "features")
        assert all(getattr(other, name) == getattr(first, name) for name in same)
    assert len({case.contexts for case in others}) > 20


def test_drawn_cases_reach_everything_that_a_request_can_name():
    words = Counter(word for case in MANY for word in case.features)

    assert {case.mode for case in MANY} == set(Mode)
    assert set(words) == set(DRAWN)
    assert {case.kind for case in MANY} == {"decode", "prefill", "mixed"}
    assert {(case.mode, case.layout) for case in MANY} == {(mode, layout) for mode in Mode for layout in known(mode)}
    assert any(case.head_size & -case.head_size == 8 for case in MANY)
    assert {1, 71} <= {case.group for case in MANY}
    assert any(0 in case.contexts for case in MANY)
    assert {(case.kind, case.total_known) for case in MANY if case.kind == "decode"} == {
        ("decode", known) for known in (True, False)
    }
    assert all(case.page % 16 == 0 and 16 <= case.page <= 544 for case in MANY)
    assert all(case.head_size % 8 == 0 and 32 <= case.head_size <= 512 for case in MANY)


def test_plain_torch_is_right_in_drawn_cases():
    judged = judge_numbers("cpu", 11, 0, 2 * FAMILY, [str(mode) for mode in Mode])

    assert [each["number"] for each in judged] == list(range(2 * FAMILY))
    assert not [each for each in judged if each["failures"]]


@pytest.fixture
def broken(monkeypatch) -> Any:
    """Return a function that makes plain torch's attention of `none` wrong in a given way."""
    attend = load("kvreg_cpu.attend:attend_none")

    def make(change) -> None:
        right = type(attend).__call__

        def wrong(self, call, config) -> None:
            right(self, call, config)
            change(call.out)

        monkeypatch.setattr(type(attend), "__call__", wrong)

    return make


CASE = replace(draw(0, 0, LIMITS["cpu"]), mode="none", contexts=(3, 20), kind="decode", stray=0, input="normal")


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda out: out.mul_(0.9), "rel_error"),
        (lambda out: out.zero_(), "rel_error"),
        (lambda out: out[0].fill_(torch.nan), "finite"),
    ],
    ids=["a tenth off", "zeros", "a row of nan"],
)
def test_a_wrong_kernel_is_a_typed_failure(change, check, broken):
    right = judge(CASE, place_of("cpu"))
    assert right.failures == ()
    assert right.worst is not None
    assert 0 < right.worst < 1e-2

    broken(change)

    assert check in {failure.check for failure in judge(CASE, place_of("cpu")).failures}


@pytest.mark.parametrize(("known", "shares"), [(True, {9}), (False, {0})])
def test_a_plan_is_told_the_sum_of_lengths_where_the_case_says_so(known, shares, monkeypatch):
    launcher = type(load("kvreg_cpu.attend:attend_none"))
    right, found = launcher.__call__, set()

    def noted(self, call, config) -> None:
        found.add(call.split.shares)
        right(self, call, config)

    monkeypatch.setattr(launcher, "__call__", noted)
    for name, number in {"splits": 40, "chunk": 16, "shares": 9}.items():
        monkeypatch.setattr(launcher, name, lambda *_, number=number: number, raising=False)

    case = replace(CASE, contexts=(3, 3, 300), batch_invariant=False, total_known=known)
    assert judge(case, place_of("cpu")).failures == ()
    assert found == shares


def test_an_exception_is_a_failure_that_names_its_place(broken):
    def change(out) -> None:
        raise RuntimeError("the card has left\nfor good")

    broken(change)

    (failure,) = judge(CASE, place_of("cpu")).failures

    assert (failure.check, failure.found) == ("exception", "RuntimeError: the card has left")
    assert failure.where.startswith("change:")


def test_a_run_says_how_many_cases_there_were_and_where_to_go_on():
    done = command(
        "--device", "cpu", "--cases", "30", "--seed", "5", "--start", "10", "--mode", "none", "--workers", "1"
    )

    assert done.returncode == 0, done.stderr
    counted, worst, variants, following = done.stdout.splitlines()
    assert counted.startswith("30 cases on cpu in ")
    assert counted.endswith("(none 30), 0 failed")
    assert worst.startswith("worst e: none ")
    assert 0 < float(worst.split()[-1]) < 1e-2
    assert variants == "variants: torch-none-decode@1 30, torch-none-prefill@1 30, torch-none-write@1 30"
    assert following == "go on: --seed 5 --start 40"


def test_a_run_without_an_end_or_a_card_is_refused_in_one_line():
    endless = command("--device", "cpu")

    assert endless.returncode == 2
    assert endless.stderr == "fuzz: required an end, found none; pass --minutes N or --cases N\n"


TASKS = """
import os
from kvreg.validation.fuzz_judge import judge_numbers
def judge(place, seed, first, count, modes):
    if first == 50:
        os._exit(9)
    judged = judge_numbers(place, seed, first, count, modes)
    if first == 25:
        judged[3]["failures"].append("rel_error at kernel, sequence 0: required at most 0.005, found 1")
    return judged
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second family has one failure, and the third ends its process."""
    (tmp_path / "fuzz_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(fuzz, "JUDGE", "fuzz_tasks:judge")


@pytest.mark.long
def test_a_failure_and_a_crash_are_counted_with_the_command_that_repeats_them(failing, capsys):
    tally = fuzz.run(device="cpu", minutes=None, seed=2, cases=4 * FAMILY, modes=("none",), workers=2)

    assert (tally.failures, sum(tally.modes.values())) == (2, 3 * FAMILY)
    assert tally.following == 4 * FAMILY
    printed = capsys.readouterr().out
    assert "FAILED rel_error at kernel, sequence 0" in printed
    assert (
        "repeat it: python -m kvreg.validation.fuzz --device cpu --seed 2 --start 28 --cases 1 --mode none" in printed
    )
    assert "FAILED crash: required an answer, found task: exit code 9" in printed
    assert "--seed 2 --start 50 --cases 25 --mode none" in printed


@pytest.mark.long
def test_a_run_that_fails_everywhere_stops(failing, monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "MOST_FAILURES", 1)

    tally = fuzz.run(device="cpu", minutes=None, start=25, modes=("none",), workers=1)

    assert tally.failures == 1
    assert capsys.readouterr().out.endswith("stopped after 1 failures\n")


@pytest.mark.long
def test_the_time_ends_a_run_and_what_was_cut_off_is_done_again(capsys):
    tally = fuzz.run(device="cpu", minutes=0, modes=("none",), workers=1)

    assert sum(tally.modes.values()) == FAMILY
    assert tally.following == FAMILY
    assert tally.failures == 0


def test_without_a_card_a_run_ends_at_once(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    monkeypatch.setenv("KVREG_DEVICE", "h200")

    done = command("--device", "cuda", "--minutes", "1")

    assert done.returncode == 6
    assert done.stderr == "device cuda: required a card that torch sees, found none; run kvreg doctor\n"


def test_every_variant_that_fits_a_case_is_drawn_and_one_that_does_not_is_not():
    h200 = Place("cuda", resolve.resolve("h200"), "cpu")
    narrow = replace(CASE, mode="int4_per_token_head", dtype="bf16", group=4, features=("causal",))
    chosen = {}
    for group, features in ((4, ("causal",)), (4, ("causal", "multi_query_split")), (71, ("causal",))):
        case = replace(narrow, group=group, features=features)
        selections = [selection_of(replace(case, preference=n), h200, batch_of(case, "cpu")) for n in range(4)]
        chosen[group, features[-1]] = [each.result.ops["decode"].variant for each in selections]

    own, portable = "cuda-int4-decode@1", "triton-int4-decode@1"
    assert sorted(chosen[4, "causal"]) == sorted(chosen[4, "multi_query_split"]) == [own, own, portable, portable]
    assert set(chosen[71, "causal"]) == {portable}
