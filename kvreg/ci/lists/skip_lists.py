"""Skip lists as text: Intel's folders (one a platform, one file a suite) and array-api-tests' skip and xfail files.

# a comment above a group of ids is their reason, mostly with a link
test/unit/language/test_core.py::test_dot3d[8-2-32-32-32-8-16-float16-float16]
test/unit/language/test_core.py::test_scaled_dot              all of its parameters
tests/kernels/quant/.*gptq.*@regexp                           every id that the expression matches
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kvreg.ci.lists.exclusions import Exclusion, How, Place, reason_and_issue
from kvreg.ci.lists.guesses import Guesser
from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read_text
from kvreg.core.expectations.predicates import When, parse
from kvreg.core.expectations.vocabulary import Expect

REGEXP = "@regexp"
DESELECT = "--deselect="
_ENTRY = re.compile(r"(?P<entry>\S[^\[]*\[.*?\]|\S+)(?:\s+#\s*(?P<remark>.*))?")
"""An id or expression with a comment behind it; inside of brackets `#` starts none."""
INTEL_DEFAULT = "default"
"""The folder that holds for every platform of Intel's."""


def read_intel(source: Path, guesser: Guesser, told: When | None = None) -> list[Exclusion]:
    """Return the lines of a skip-list folder, or of one file of it; the folder's name says where they hold.

    `told` is where those hold whose folder is no known word (`mtl`, `conda`).
    """
    files = sorted(source.rglob("*.txt")) if source.is_dir() else [source]
    root = source if source.is_dir() else source.parent
    found: list[Exclusion] = []
    for path in files:
        shown = path.relative_to(root)
        folder = shown.parts[0] if len(shown.parts) > 1 else root.name
        found += _lines(read_text(path), shown, _intel_place(folder, guesser, told), Expect.SKIP)
    if not found:
        raise BadFile(f"{source}: required skip lists (.txt), found no line of any; check the path")
    return found


def read_array_api(source: Path, place: Place) -> list[Exclusion]:
    """Return the lines of array-api-tests' files: a name with `xfail` in it expects failures, any other skips."""
    expect = Expect.XFAIL if "xfail" in source.name else Expect.SKIP
    found = list(_lines(read_text(source), Path(source.name), place, expect))
    if not found:
        raise BadFile(f"{source}: required ids, one a line, found none; check the path")
    return found


def read_arguments(source: Path, place: Place) -> list[Exclusion]:
    """Return the `--deselect` lines of a file that pytest reads as `@FILE`: one argument a line, nothing quoted."""
    found = [
        Exclusion(How.DESELECT, line.removeprefix(DESELECT), Path(source.name), number, place)
        for number, line in enumerate(read_text(source).split("\n"), 1)
        if line.startswith(DESELECT)
    ]
    if not found:
        raise BadFile(f"{source}: required lines of {DESELECT}ID, found none; check the path")
    return found


def _intel_place(folder: str, guesser: Guesser, told: When | None) -> Place:
    if folder == INTEL_DEFAULT:
        return Place(folder, parse({"platform": "xpu"}))
    found = guesser.place(folder)
    return found if found.when is not None else Place(folder, told)


def _lines(text: str, file: Path, place: Place, expect: Expect) -> Iterator[Exclusion]:
    """Yield the entries of a file; a comment counts for the lines below it up to the next comment or empty line."""
    comment: list[str] = []
    below_entry = False
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("#"):
            comment = [] if below_entry else comment
            comment.append(line.lstrip("#").strip())
            below_entry = False
            continue
        if not line:
            comment = []
            continue
        split = _ENTRY.fullmatch(line)
        entry, trailing = (split["entry"], split["remark"]) if split is not None else (line, None)
        below_entry = True
        reason, issue = reason_and_issue(trailing or " ".join(comment))
        how = How.REGEXP if entry.endswith(REGEXP) else How.DESELECT
        yield Exclusion(how, entry.removesuffix(REGEXP), file, number, place, expect, reason, issue)
