"""`kvreg tune` for a card that is not here: compiled for its arch, ranked, and marked as estimated."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

CARD = ("tune", "--device", "mi300x", "--mode", "int4_per_token_head", "--head-size", "128")

VARIANTS = ["triton-int4-write", "triton-int4-decode", "triton-int4-prefill", "rocm-int4-prefill"]
"""All that serve that shape, in the order of the run.

`select` answers with AMD's own prefill, and with the portable one where that is switched off or was measured faster.
"""

ONE_SECOND = (*CARD, "--op", "write", "--budget", "1s", "--jobs", "2", "--json")


def test_a_card_that_is_not_here_gets_estimated_entries(tmp_path: Path, command: Any) -> None:
    done = command.run(*ONE_SECOND, home=tmp_path)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (result,) = document["results"]
    assert document["source"] == "estimated"
    assert result["cut_off"]
    assert result["winner"]["estimated_us"] <= result["default"]["estimated_us"]
    assert result["resources"]["registers"] > 0
    (entry,) = yaml.safe_load((tmp_path / "tuned/mi300x.yaml").read_text())["entries"]
    assert entry["source"] == "estimated"
    assert entry["bucket"] == "t32"


@pytest.mark.long
def test_the_next_call_goes_on_behind_what_was_compiled(tmp_path: Path, command: Any) -> None:
    answers = [json.loads(command.run(*ONE_SECOND, home=tmp_path).stdout) for _ in range(2)]

    tried = [sum(each["results"][0]["trials"].values()) for each in answers]
    assert tried[1] > tried[0]


def test_a_run_that_takes_no_estimates_ends_with_6(tmp_path: Path, command: Any) -> None:
    done = command.run(*CARD, "--no-estimate", home=tmp_path)

    assert done.returncode == 6
    assert "required that card in this machine" in done.stderr
    assert not (tmp_path / "tuned").exists()


def test_an_arch_alone_is_refused(tmp_path: Path, command: Any) -> None:
    done = command.run("tune", "--device", "gfx942", "--op", "write", home=tmp_path)

    assert done.returncode == 3
    assert "a card with known units and bandwidth" in done.stderr


@pytest.mark.long
def test_an_mi300x_is_estimated_in_five_minutes(tmp_path: Path, command: Any) -> None:
    began = time.monotonic()
    done = command.run(*CARD, "--json", home=tmp_path)

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 300
    results = json.loads(done.stdout)["results"]
    assert [each["variant"].partition("@")[0] for each in results] == VARIANTS
    assert all(each["winner"] is not None for each in results)
    entries = yaml.safe_load((tmp_path / "tuned/mi300x.yaml").read_text())["entries"]
    assert {each["variant"] for each in entries} == {each["variant"] for each in results}
