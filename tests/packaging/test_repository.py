"""What the repository's files must not hold, and pins that say what they should."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata

import pytest

pytestmark = pytest.mark.checkout

# Put together from parts, so that this file is no finding of its own.
# A method that is abstract says so behind the error.
ABSTRACT = r"(?!  # every subclass has its own)"
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" * 3 + r"\b", "NotImplemented" + "Error" + ABSTRACT)))
FOLDERS = ("work", "tmp", "home", "root", "opt", "Users", "mnt", "srv", "private", "var/folders")
MACHINE_PATH = re.compile(rf"(?<![\w.~}}$/-])/(?:{'|'.join(FOLDERS)})/\w")
HOSTS = ("py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.", "ana" + r"conda\.org", "index" + "-url")
PACKAGE_HOST = re.compile("|".join(HOSTS))


@pytest.fixture(scope="module")
def texts(root):
    """Every text file of the repository with its content."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("no git here to say what belongs to the repository")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and not name.endswith(".gz"):
            found[name] = path.read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize(
    ("what", "pattern"),
    [("work left open", UNFINISHED), ("a machine's path", MACHINE_PATH), ("a host", PACKAGE_HOST)],
    ids=["work left open", "a path", "a host"],
)
def test_no_file_holds(what, pattern, texts):
    hits = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]

    assert not hits, what


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (MACHINE_PATH, 'path = "/ho' + 'me/someone/kvreg"'),
        (MACHINE_PATH, "cd /tm" + "p/x"),
        (PACKAGE_HOST, "https://py" + "pi.org/simple"),
    ],
    ids=["work left open", "a home", "a temporary folder", "a host"],  # the patterns would be hits in the list of ids
)
def test_the_patterns_find_what_they_are_for(pattern, line):
    assert pattern.search(line)


def pins(path):
    lines = [line.strip() for line in path.read_text().splitlines()]
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, version in found.items()}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(root):
    """Name and version ranges of every dependency and extra, and of the build."""
    from packaging.requirements import Requirement

    document = tomllib.loads((root / "pyproject.toml").read_text())
    project = document["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in (*document["build-system"]["requires"], *project["dependencies"], *extras)]


def test_every_requirement_is_pinned_within_its_range(root):
    pinned = pins(root / "ci" / "constraints.txt")

    for requirement in requirements(root):
        assert requirement.specifier.contains(pinned[normal(requirement.name)]), requirement


def test_the_oldest_triton_of_the_extra_is_the_one_that_is_tried(root):
    oldest = pins(root / "ci" / "constraints-oldest.txt")
    (triton,) = [each for each in requirements(root) if each.name == "triton"]

    assert triton.specifier.contains(oldest["triton"])
    assert f">={'.'.join(oldest['triton'].split('.')[:2])}" in str(triton.specifier)


def test_every_package_that_the_pinned_ones_need_is_pinned(root):
    """What is installed here and pinned needs nothing, on this platform, that is not pinned."""
    from packaging.requirements import Requirement

    pinned = pins(root / "ci" / "constraints.txt")
    missing = set()
    for name in pinned:
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                missing |= {normal(requirement.name)} - set(pinned)

    assert missing - {"setuptools"} == set()
