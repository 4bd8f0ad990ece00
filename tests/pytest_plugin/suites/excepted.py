"""Tests of every kind that a list of expectations speaks of."""

from __future__ import annotations

import os
import time

import pytest


def test_right():
    pass


@pytest.mark.parametrize("n", [1, 2])
def test_wrong(n):
    assert n == 0


def test_mended():
    pass


def test_wrong_elsewhere():
    pass


def test_sometimes():
    raise AssertionError("a race was lost")


def test_steady():
    pass


@pytest.fixture
def shaky():
    raise OSError("no port was free")


def test_sometimes_without_a_port(shaky):
    pass


def test_hangs():
    time.sleep(600)


def test_crashes():
    os.abort()


def test_recovered():
    pass


def test_wrong_past_its_date():
    raise AssertionError("still wrong")


def test_crashes_past_its_date():
    os.abort()


def test_old_driver():
    pass
