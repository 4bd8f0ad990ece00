"""A fleet of the made-up platform, and a checkout of a few files that import each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

FLEET: dict[str, Any] = {
    "schema": 1,
    "sources": [".", "backends"],
    "paths": {"every_job": ["core", "ci"], "no_job": ["docs", "ci/notes.md"]},
    "stacks": {"newest": {"python": "3.11", "torch": "2.13.0", "triton": "3.9.0"}, "machine": {}},
    "suites": {"card": {"tests": ["tests/card", "tests/test_all.py"], "marker": "gpu"}},
    "runners": [
        {
            "name": "first",
            "device": "Toy Alpha",
            "labels": ["self-hosted", "alpha"],
            "queue": "alpha",
            "suite": "card",
            "stacks": ["newest", "machine"],
        },
        {
            "name": "second",
            "device": "gamma",
            "labels": ["self-hosted", "gamma"],
            "queue": "gamma",
            "suite": "card",
            "stacks": ["machine"],
        },
    ],
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of runners at its place in a checkout.

    `changed` replaces whole parts; `runners` are changes of the first runner, one for each that the file is to have.
    """

    def write(changed: Mapping[str, Any] | None = None, runners: Sequence[Mapping[str, Any]] | None = None) -> Path:
        path = tmp_path / "checkout" / "ci" / "runners.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {**FLEET, **(changed or {})}
        if runners is not None:
            document["runners"] = [{**FLEET["runners"][0], **each} for each in runners]
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    return write
