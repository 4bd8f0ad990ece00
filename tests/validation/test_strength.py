"""A weaker record never takes the place of a stronger one of the same kernel, and --stale finds what is weaker."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest

from kvreg.core import registry, resolve
from kvreg.core.index import Index
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.traces import read_trace
from kvreg.core.variants import Variant
from kvreg.validation.cells import PROFILES
from kvreg.validation.machine import Machine
from kvreg.validation.stale import covered_by, lacking
from kvreg.validation.strength import kept_instead

HASH = "a" * 64
DEVICE, USUAL = PROFILES["device"], ["causal", "multi_query_split"]


@pytest.fixture
def variant() -> Variant:
    cuda = next(each for each in registry.backends() if each.name == "cuda")
    return next(each for each in cuda.variants() if each.op is Op.DECODE and each.mode is Mode.NONE)


@pytest.fixture
def stored(trace_maker: Any, variant: Variant, tmp_path: Path) -> Any:
    """Record an H200's trace of head size 96; returns its path."""

    def make(**changed: Any) -> Path:
        values = {"kernel_hash": HASH, "features": [*USUAL, "window", "sinks"], **changed}
        path: Path = trace_maker(tmp_path / "evidence", variant, "cuda", "h200", "sm_90", **values)
        return path

    return make


def newer(path: Path, **changed: Any) -> dict[str, Any]:
    """Return the record of a later run, like the stored one but for `changed`."""
    return {**read_trace(path).model_dump(mode="json"), **changed}


def test_a_trace_of_more_features_stays_and_says_so(stored: Any) -> None:
    path = stored()

    kept = kept_instead(path, newer(path, features=USUAL))

    assert kept == f"{read_trace(path).id} covers window, sinks too and stays; --features replaces it"


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel_hash": "b" * 64, "features": USUAL},
        {"features": [*USUAL, "window", "sinks", "alibi"]},
        {"features": [*USUAL, "window", "sinks"]},
        {"features": [*USUAL, "window", "alibi"]},
    ],
    ids=["another kernel", "more features", "as many", "others"],
)
def test_a_trace_that_is_not_weaker_takes_its_place(stored: Any, changed: dict[str, Any]) -> None:
    path = stored()

    assert kept_instead(path, newer(path, **changed)) is None


def test_fewer_seeds_or_no_times_of_the_same_versions_are_weaker(stored: Any) -> None:
    path = stored()
    same = newer(path)
    other = {**same["versions"], "torch": "9.9"}

    assert "has 3 seeds and stays" in str(kept_instead(path, {**same, "gate": {**same["gate"], "seeds": 1}}))
    assert "has times and stays" in str(kept_instead(path, {**same, "timings": []}))
    assert kept_instead(path, {**same, "timings": [], "versions": other}) is None


def test_an_edited_trace_stays_for_nothing(stored: Any) -> None:
    path = stored()
    record = newer(path, features=USUAL)
    path.write_text(path.read_text().replace("max_rel_error: 0.002", "max_rel_error: 0.001"))

    assert kept_instead(path, record) is None
    assert kept_instead(path.with_name("nothing.yaml"), record) is None


@pytest.mark.parametrize(
    ("features", "kernel_hash", "stale"),
    [(None, HASH, False), (USUAL, HASH, True), (None, "b" * 64, True)],
    ids=["all that is tried", "fewer features", "another kernel"],
)
def test_stale_is_what_covers_less_than_this_run_would(
    stored: Any, variant: Variant, tmp_path: Path, features: list[str] | None, kernel_hash: str, stale: bool
) -> None:
    tried = sorted(covered_by(variant, 96, DEVICE))
    assert set(USUAL) < set(tried)
    stored(features=features or tried, kernel_hash=kernel_hash)
    backend = copy(next(each for each in registry.backends() if each.name == "cuda"))
    backend.evidence_dir = tmp_path / "nothing"  # the test's record is to be the only one
    machine = Machine(resolve.resolve("h200").device, (backend,), "device", "cuda:0")
    home = Index([backend], tmp_path, shipped=None)

    found = lacking(machine, [variant], (96,), {str(variant.id): HASH}, home, DEVICE)

    assert found == ([(variant, 96)] if stale else [])
