"""The words that an expectation may use, and what each takes as its value. Any other word is a finding.

A predicate speaks of the place where tests run, never of a CI job: jobs are renamed, cards are not.
"""

from __future__ import annotations

from enum import StrEnum


class Expect(StrEnum):
    """What is expected of a test where its expectation holds."""

    XFAIL = "xfail"
    """It runs and fails; a pass is a failure, since the entry is then no longer true."""
    FLAKY = "flaky"
    """It runs and is reported, and neither outcome gates."""
    SKIP = "skip"
    """It cannot run: it would take the process, the card or the machine with it."""


class Kind(StrEnum):
    """Why a test cannot run; only a skip has one."""

    CRASH = "crash"
    HANG = "hang"
    OOM = "oom"
    UNSUPPORTED = "unsupported"


REQUIRED = ("reason", "issue", "owner", "added", "review_by")
"""Fields without which nothing is switched off; a list that lacks them is read all the same, and each is a finding."""


class WordType(StrEnum):
    """What the value of a predicate's word is made of."""

    NAME = "name"
    """A name, a list of names (any of them), or `not NAME` (and a list of these: none of them)."""
    SIZE = "size"
    """Bounds in GiB: `< 24`, `>= 16, < 24`. Memory has no equality: no two cards report the same figure."""
    VERSION = "version"
    """Bounds on a version, each compared at its own precision: `< 3.8`, `>= 3.6, < 3.8`, `== 3.7`."""


WORDS = {
    "platform": WordType.NAME,
    "arch": WordType.NAME,
    "device": WordType.NAME,
    "memory_gib": WordType.SIZE,
    "triton": WordType.VERSION,
    "torch": WordType.VERSION,
    "driver": WordType.VERSION,
}
"""Every word of a predicate."""

NAMES = tuple(word for word, type_ in WORDS.items() if type_ is WordType.NAME)

MEANINGS = {
    "platform": "cuda, rocm, xpu, cpu or a plug-in's",
    "arch": "as `kvreg devices` lists it: sm_90, gfx942, bmg",
    "device": "a key of `kvreg devices`; a card's name covers its MIG slices",
    "memory_gib": "GiB of device memory that the test process sees",
    "triton": "installed version of Triton",
    "torch": "installed version of torch",
    "driver": "version of the card's driver",
}

EVERYWHERE = "everywhere"
"""The predicate without a condition; written out, so that nothing is switched off everywhere by leaving a line out."""
