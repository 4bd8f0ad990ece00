"""A tuning run among hazards: the check passes on a run that went well and fails on each that did not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvreg.core import resolve
from kvreg.core.buckets import Bucket
from kvreg.validation.robust import tuning
from kvreg.validation.robust.planted import KNOB, Kind
from kvreg.validation.unproven import Place, place_of
from kvreg_tuning.outcomes import Trial
from kvreg_tuning.worker import Outcome

H200 = Place("cuda:0", resolve.resolve("h200"), "cuda:0")


@pytest.fixture
def ran() -> tuning.Ran:
    """A tuning run on an H200 in which everything went as it should."""
    reasons = {Kind.OUT_OF_BOUNDS: "gate: AcceleratorError: CUDA error: an illegal memory access was encountered"}
    return tuning.Ran(
        limits=tuning.Limits(Bucket(8, 4096), 8, 15.0, 90.0),
        end=Outcome("ok", elapsed_s=60.0),
        trials=tuple(
            Trial({KNOB: int(kind)}, "b8-c4096", result, reasons.get(kind, ""))
            for kind, result in tuning.due_of(H200).items()
        ),
        winners=(tuning.Winner(Kind.ONCE, 20.0, 60.0, 2e-3),),
        next=Outcome("ok"),
    )


def shortcomings(ran: tuning.Ran) -> list[str]:
    return list(tuning.shortcomings(ran, tuning.due_of(H200), cuda=True))


def with_trial(ran: tuning.Ran, kind: Kind, **changed: Any) -> tuning.Ran:
    return replace(
        ran, trials=tuple(replace(each, **changed) if each.config[KNOB] == kind else each for each in ran.trials)
    )


def won_by(ran: tuning.Ran, **changed: Any) -> tuning.Ran:
    return replace(ran, winners=(replace(ran.winners[0], **changed),))


def test_a_tuning_run_among_hazards_that_went_as_it_should_is_told_in_numbers(ran):
    assert shortcomings(ran) == []
    assert str(ran) == (
        "7 trials (1 compile, 1 crash, 3 ok, 1 timeout, 1 wrong) in 60.0 s of a budget of 90;"
        " once wins with 20.0 us, default 60.0 us; then ok"
    )


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.ONCE], ids=lambda kind: kind.word)
def test_a_tuning_run_that_another_config_than_the_fastest_right_one_wins_has_failed(kind, ran):
    assert shortcomings(won_by(ran, kind=kind)) == [f"winner: required once, the fastest right one, found {kind.word}"]


def test_a_tuning_run_without_a_winner_or_without_its_gate_has_failed(ran):
    assert shortcomings(replace(ran, winners=())) == ["winner: required once, the fastest right one, found none"]
    assert shortcomings(won_by(ran, e=None)) == ["winner: required an error that the gate has judged, found none"]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.word)
def test_a_tuning_run_that_does_not_type_a_trial_as_it_should_has_failed(kind, ran):
    (other,) = shortcomings(with_trial(ran, kind, result="slow", reason="because"))
    (missing,) = shortcomings(replace(ran, trials=tuple(each for each in ran.trials if each.config[KNOB] != kind)))
    (again,) = shortcomings(replace(ran, trials=(*ran.trials, ran.trials[kind])))

    due = tuning.due_of(H200)[kind]
    assert other == f"{kind.word}: required one trial that ends as {due}, found slow because"
    assert missing == f"{kind.word}: required one trial that ends as {due}, found none"
    assert again.startswith(f"{kind.word}: required one trial that ends as {due}, found {due}")


def test_a_crash_that_is_no_error_of_the_device_does_not_pass_for_a_bad_address_on_cuda(ran):
    killed = with_trial(ran, Kind.OUT_OF_BOUNDS, reason="gate: task: killed by SIGKILL")

    assert shortcomings(killed) == [
        "out_of_bounds: required an error of the device, found crash gate: task: killed by SIGKILL"
    ]
    assert list(tuning.shortcomings(killed, tuning.due_of(H200), cuda=False)) == []


def test_a_tuning_run_that_takes_too_long_or_breaks_or_leaves_a_dead_device_has_failed(ran):
    long = replace(ran, end=Outcome("ok", elapsed_s=90.1))
    hung = replace(ran, end=Outcome("timeout", error="task: still running", elapsed_s=120.0))
    dead = replace(ran, next=Outcome("timeout", error="task: still running after 60 s"))

    assert shortcomings(long) == ["run: required an end within 90 s, found 90.1 s"]
    assert shortcomings(hung)[0] == "run: required its end, found timeout task: still running"
    assert shortcomings(dead) == [
        "next task: required an answer of the device, found timeout task: still running after 60 s"
    ]


def test_a_tuning_run_on_the_cpu_survives_what_is_wrong_what_crashes_and_what_cannot_be_built():
    kinds = (Kind.THRICE, Kind.UNBUILDABLE, Kind.ZEROS, Kind.OUT_OF_BOUNDS, Kind.ONCE)

    found = tuning.survived(place_of("cpu"), kinds)

    assert found.status == "ok", found
    assert found.detail.startswith("5 trials (1 compile, 1 crash, 2 ok, 1 wrong) in ")


@pytest.mark.long
@pytest.mark.parametrize("place", ["cpu", "interpreter"])
def test_a_tuning_run_survives_its_hazards(place):
    if place == "interpreter":
        pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    found = tuning.survived(place_of(place))

    assert found.status == "ok", found
