"""What an answer proposes next is taken when it is run, whatever was refused."""

from __future__ import annotations

import importlib
import shlex
from itertools import product

from kvreg.cli.main import COMMANDS
from kvreg.cli.next_commands import next_command
from kvreg.core import asking

WRONG = (
    {"head_size": 33},
    {"head_size": 8},
    {"head_size": 33, "page": 24, "q_heads": 31},
    {"page": 17},
    {"q_heads": 30},
    {"q_heads": 8000},
    {"dtype": "fp32"},
    {"layout": "planar.2"},
    {"features": ("qq_bias", "window")},
    {"features": ("rswa",), "head_size": 520},
    {"mode": "fp8_per_tensor"},
    {"mode": "int8_per_token_head", "head_size": 44},
)
DEVICES = ("h200", "cpu")


def asked_again(words):
    """Parse a command as its program would; returns click's context."""
    module, _, name = COMMANDS[words[1]].target.partition(":")
    command = getattr(importlib.import_module(module), name)
    with command.make_context(words[1], words[2:]) as context:
        return context


def test_what_a_refusal_proposes_is_taken():
    refused = 0
    for device, wrong in product(DEVICES, WRONG):
        values = {"mode": None, "head_size": 128, **wrong}
        answer = asking.ask(device, values.pop("mode"), values.pop("head_size"), **values)
        if any(each.verdict == "selected" for each in answer.results):
            continue
        refused += 1
        words = shlex.split(next_command(answer, explained=False))
        parsed = asked_again(words).params
        if words[1] == "select":
            named = {name: parsed[name] for name in ("q_heads", "kv_heads", "page", "dtype", "layout", "accuracy")}
            again = asking.ask(
                parsed["device"], parsed["mode"], parsed["head_size"], features=parsed["features"] or None, **named
            )
            assert any(each.verdict == "selected" for each in again.results), (device, wrong, words)
    assert refused > 15


def test_a_refusal_of_several_values_is_mended_in_all_of_them():
    answer = asking.ask("h200", None, 97, page=24, q_heads=30)

    assert next_command(answer, explained=False) == (
        "kvreg select --device h200 --head-size 96 --q-heads 24 --page 16"
    )


def test_what_was_asked_for_is_not_said_to_be_assumed(kvreg):
    told = kvreg("select", "--device", "cpu", "--head-size", "64", "--mode", "none", "--feature", "window").out

    assert "head size 64, window\n" in told
    assert "bf16, causal, batch" in told
