"""PyTorch's disabled tests: JSON of `test_name (module.Class)` -> [issue number, URL, platforms].

An empty list of platforms means everywhere. Of its words only `rocm` is one of kvreg's; the others name operating
systems and modes of a compiler, which no declared word says, so such a line is not widened to everywhere but left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kvreg.ci.lists.exclusions import Exclusion, How, Place
from kvreg.core.errors import BadFile
from kvreg.core.expectations.files import read_text
from kvreg.core.expectations.predicates import When, parse
from kvreg.core.expectations.successors import HIDDEN

_NAME = re.compile(r"(?P<test>\S+)\s+\((?P<module>[\w.]*?)\.?(?P<cls>\w+)\)")
PLATFORMS: dict[str, When] = {"rocm": parse({"platform": "rocm"})}
"""Words of these lists that are words of the vocabulary too."""
KNOWN_WORDS = ("asan", "linux", "mac", "macos", "win", "windows", "slow", "dynamo", "inductor", *PLATFORMS)


def read_disabled(source: Path) -> list[Exclusion]:
    """Return the disabled tests of a file, one for each place; raises BadFile where it is no such JSON."""
    text = read_text(source)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{source}: required JSON, found: {error}; check the path") from None
    if not isinstance(document, dict) or not all(_is_record(value) for value in document.values()):
        raise BadFile(f"{source}: required disabled tests (name -> [number, URL, platforms]), found other JSON")
    lines = text.split("\n")
    found: list[Exclusion] = []
    for name, (_, url, platforms) in document.items():
        line = next((number for number, each in enumerate(lines, 1) if json.dumps(name) in each), 1)
        for place in _places(platforms):
            found.append(Exclusion(How.DESELECT, node_id(name), Path(source.name), line, place, issue=url))
    return found


def node_id(name: str) -> str:
    """Return the node id of a test's name; `__main__` stands for a file that the list does not name."""
    match = _NAME.fullmatch(name.strip())
    if match is None:
        return name
    module = match["module"] or HIDDEN
    file = HIDDEN if module == HIDDEN else f"test/{module.replace('.', '/')}.py"
    return f"{file}::{match['cls']}::{match['test']}"


def name(test: str) -> str | None:
    """Return the name that these lists have for a node id; None for one that is no method of a class."""
    file, *inner = test.split("::")
    if len(inner) != 2:
        return None
    module = file if file == HIDDEN else file.removeprefix("test/").removesuffix(".py").replace("/", ".")
    return f"{inner[1]} ({module}.{inner[0]})"


def _places(words: list[Any]) -> list[Place]:
    if not words:
        return [Place("everywhere", When())]
    found = [Place(str(word), PLATFORMS[word]) for word in dict.fromkeys(words) if word in PLATFORMS]
    left = [str(word) for word in dict.fromkeys(words) if word not in PLATFORMS]
    if left:
        strange = [word for word in left if word not in KNOWN_WORDS]
        found.append(Place(", ".join(left), None, f"no platform: {', '.join(strange)}" if strange else ""))
    return found


def _is_record(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[1], str) and isinstance(value[2], list)
