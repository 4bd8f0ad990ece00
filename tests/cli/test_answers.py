"""What `kvreg select` prints for a made-up platform: whole answers, as a pipe gets them."""

from pathlib import Path

import pytest

from kvreg.cli import answers
from kvreg.core.sizing import sizes_of

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "device", "mode", "head_size", "asked"),
    [
        ("selected", "alpha", None, 96, {}),
        ("refused", "Toy Gamma", "int4_per_token_head", 97, {"dtype": "fp16", "batch": 4}),
        ("arch", "beta", "int4_per_token_head", 96, {"layout": "inline.1"}),
    ],
)
def test_an_answer_reads_exactly_so(workshop, capsys, name, device, mode, head_size, asked):
    workshop.validate("alpha")
    workshop.validate("gamma")

    answers.show(workshop.ask(device, mode, head_size, **asked), index=workshop.index())

    assert capsys.readouterr().out == (GOLDEN / f"select-{name}.txt").read_text()


def test_sizes_read_exactly_so(workshop, capsys):
    workshop.validate("alpha")
    answer = workshop.ask("alpha", "int4_per_token_head", 96)

    answers.show(answer, sizes=sizes_of(answer, 32))

    assert capsys.readouterr().out == (GOLDEN / "select-sizes.txt").read_text()


def test_a_card_of_unknown_memory_is_said_to_fit_nothing(workshop, capsys):
    answer = workshop.ask("beta", "none", 96)

    answers.show(answer, sizes=sizes_of(answer, 32))

    out = capsys.readouterr().out
    assert "the card's memory is unknown, so nothing is said to fit" in out
    assert "25.8      25.8     1.00       unknown        unknown" in out


def test_explain_shows_evidence_launch_parameters_and_every_reason(workshop, capsys):
    workshop.validate("alpha")
    workshop.tune("alpha", {})

    answers.show(workshop.ask("alpha", None, 96, features=["causal", "window"]), explain=True)
    refused = capsys.readouterr().out
    answers.show(workshop.ask("alpha", "int4_per_token_head", 96), explain=True)
    selected = capsys.readouterr().out

    assert "toy-int4-decode@1   rejected  feature  causal" in refused
    assert "tile=128 (tuned)" in selected
    assert "tile=32 (default)" in selected
    assert "numerics device, build device, speed measured, 3 seeds" in selected
    assert selected.splitlines()[-1].startswith("kvreg evidence show alpha-int4_per_token_head-d96-decode-")


def test_one_reason_for_every_mode_is_one_line(workshop, capsys):
    workshop.validate("alpha")

    answers.show(workshop.ask("alpha", None, 100), index=workshop.index())

    out = capsys.readouterr().out
    assert out.splitlines()[0] == (
        "refused: every mode on alpha: head_size: required a multiple of 8 from 32 to 512, found 100;"
        " the nearest are --head-size 96 and 104, should 100 be mistyped;"
        " a model that has it needs another mode or device"
    )
    assert out.count("required a multiple of 8") == 1
    assert out.splitlines()[-1] == "kvreg select --device alpha --head-size 96"


def test_several_reasons_are_named_by_mode_in_the_first_line(workshop, capsys):
    answers.show(workshop.ask("gamma", None, 96, dtype="fp16"))

    assert capsys.readouterr().out.splitlines()[0] == (
        "refused: every mode on gamma for head size 96: none (evidence), fp8_per_tensor (fp8_type),"
        " int8_per_token_head (no_variant), fp8_per_token_head (fp8_type), int4_per_token_head (evidence)"
    )


@pytest.mark.parametrize(
    ("device", "mode", "asked", "command"),
    [
        ("gamma", "fp8_per_token_head", {"dtype": "fp16"}, "kvreg select --device gamma --head-size 96 --dtype fp16"),
        ("gamma", "none", {}, "kvreg select --device gamma --mode none --head-size 96 --dtype fp16"),
        ("alpha", "int8_per_token_head", {}, "kvreg select --device alpha --head-size 96"),
        ("alpha", "int8_per_token_head", {"page": 17, "q_heads": 30}, "--head-size 96 --q-heads 24 --page 16"),
        ("alpha", "none", {"features": ("rswa",)}, "kvreg select --device alpha --mode none --head-size 96"),
    ],
)
def test_the_last_line_is_the_command_that_helps(workshop, capsys, device, mode, asked, command):
    workshop.validate("alpha")
    workshop.validate("gamma")

    answers.show(workshop.ask(device, mode, 96, **asked), index=workshop.index())

    assert capsys.readouterr().out.splitlines()[-1].endswith(command)


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({}, "kvreg validate --device alpha --mode none --head-size 96"),
        ({"page": 17}, "kvreg coverage --platform toy"),
    ],
)
def test_where_nothing_is_validated_the_last_line_proposes_no_select(workshop, capsys, asked, command):
    answers.show(workshop.ask("alpha", "none", 96, **asked), index=workshop.index())

    assert capsys.readouterr().out.splitlines()[-1] == command


def test_a_note_that_holds_for_one_mode_names_it(workshop, capsys):
    workshop.validate("alpha")
    workshop.tune("alpha", {"kernel_hash": "0" * 64})

    answers.show(workshop.ask("alpha", None, 96))

    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert len(notes) == 1
    assert notes[0].startswith("note: int4_per_token_head: entry toy-int4-decode@1")
