"""Collected ids as pytest prints them."""

import subprocess
import sys

import pytest

from kvreg.core.errors import BadFile
from kvreg.core.expectations.collected import read_ids


def test_what_pytest_prints_is_read_and_nothing_beside_the_ids(tmp_path):
    (tmp_path / "test_x.py").write_text(
        "import warnings, pytest\nwarnings.warn('see a.py::b')\n"
        "@pytest.mark.parametrize('a', ['x y', '[z]', 'é'])\ndef test_t(a): pass\n"
        "class TestC:\n    def test_u(self): pass\n"
    )
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (tmp_path / "ids.txt").write_text(done.stdout)

    index = read_ids(tmp_path / "ids.txt")

    assert index.ordered == (
        "test_x.py::TestC::test_u",
        "test_x.py::test_t[[z]]",
        "test_x.py::test_t[\\xe9]",
        "test_x.py::test_t[x y]",
    )


@pytest.mark.parametrize("text", ["", "no tests collected\n", "# a.py::b\n"])
def test_a_file_without_ids_is_refused(tmp_path, text):
    (tmp_path / "ids.txt").write_text(text)

    with pytest.raises(BadFile, match="pytest --collect-only -q"):
        read_ids(tmp_path / "ids.txt")


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_an_id(tmp_path):
    (tmp_path / "ids.txt").write_bytes("\ufeffa.py::t\r\nb.py::u\r\n".encode())

    assert read_ids(tmp_path / "ids.txt").ordered == ("a.py::t", "b.py::u")
