"""Folders of the overlay that may not be looked into."""

import os
import tempfile
from pathlib import Path

import pytest

from kvreg.core.overlay import unreadable

NOBODY = 65534


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(("rights", "readable"), [(0o000, False), (0o444, False), (0o111, False), (0o555, True)])
def test_a_folder_serves_only_whom_it_lets_list_and_enter(rights, readable):
    """By a process that is not root: root may look everywhere."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(rights)
        child = os.fork()
        if child == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os._exit(unreadable(folder) is None)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == int(readable)


def test_a_folder_that_is_not_there_is_an_empty_one(tmp_path):
    assert unreadable(tmp_path / "none") is None
