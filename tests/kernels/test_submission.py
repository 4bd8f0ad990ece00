"""Launches as a card's are made, in a process of their own: the kernels of this one are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAUNCHED = Path(__file__).parents[1] / "launched"


def test_launches_past_triton_and_known_calls():
    """All of tests/launched, whose files say what holds."""
    ran = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(LAUNCHED)),
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=LAUNCHED.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    assert "skipped" not in ran.stdout.splitlines()[-1]
