"""YAML at the door: the C loader, one document, no key twice. Importing this module imports PyYAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvreg.core.errors import BadFile
from kvreg.core.input_files import read_text

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a PyYAML built without libyaml has only the slow one


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML keeps the last of two equal keys without a word; here the second one is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no plain word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} appears twice in one mapping", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """Return the one document of `path`; raises BadFile with the line where it cannot be read."""
    return parse(read_text(path, "YAML file"), str(path))


def parse(text: str, subject: str = "text") -> Any:
    """Return the one document of `text`; raises BadFile that names `subject` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise BadFile(f"{subject}{line}: required valid YAML, found: {problem}; correct the file") from None
    except (ValueError, RecursionError) as error:
        # A date such as 2026-13-40, a number of thousands of digits, brackets without end.
        raise BadFile(f"{subject}: required valid YAML, found: {error}; correct the file") from None
