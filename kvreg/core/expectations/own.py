"""kvreg's own list: ci/expectations.yaml and ci/test-ids.txt of a checkout, the list also in the wheel."""

from __future__ import annotations

from pathlib import Path

from kvreg.core.errors import BadFile

_PACKAGE = Path(__file__).resolve().parents[2]
SHIPPED = _PACKAGE / "_index" / "expectations.yaml"
"""Present in a wheel only; the build hook puts it there."""
CHECKOUT = _PACKAGE.parent / "ci" / "expectations.yaml"
IDS_NAME = "test-ids.txt"
"""Collected ids that stand beside a list are those of its suite."""


def path() -> Path | None:
    """Return the file of kvreg's own list; None in a tree that has none."""
    return next((each for each in (SHIPPED, CHECKOUT) if each.is_file()), None)


def required() -> Path:
    """Return the file of kvreg's own list; raises BadFile where this installation has none."""
    found = path()
    if found is None:
        raise BadFile(f"{CHECKOUT}: required kvreg's own list, found no such file; name another with --file")
    return found


def ids_beside(listed: Path) -> Path | None:
    """Return the file of collected ids in the folder of a list; None where there is none."""
    beside = listed.with_name(IDS_NAME)
    return beside if beside.is_file() else None
