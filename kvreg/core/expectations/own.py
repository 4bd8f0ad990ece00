"""kvreg's own list: ci/expectations.yaml and ci/test-ids.txt of a checkout, the list also in the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core import shards
from kvreg.core.errors import BadFile

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

_PACKAGE = Path(__file__).resolve().parents[2]
KIND = "expectations"
"""Kind and folder of the shard that the index holds of the list."""
ALL = "all"
"""Its one part."""
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
    beside = listed.parent / IDS_NAME  # `.` and `/`, which are no lists, have no name to replace
    return beside if beside.is_file() else None


def touching(shipped: Path | None, cache: shards.Cache, listed: Path | None) -> tuple[Touching, ...]:
    """Return the entries that name variants: from a wheel's index, else from a list through the cache."""
    payload = shards.read(shipped / KIND / f"{ALL}.json", KIND, ALL, None) if shipped is not None else None
    if payload is None and listed is not None:
        payload = cache.part(KIND, "own", ALL, [listed], lambda: _build(listed))
    if not payload:
        return ()
    from kvreg.core.expectations.derived import Touching  # 5 ms that a list without such entries does not cost

    return tuple(Touching.of(record) for record in payload)


def _build(listed: Path) -> dict[str, shards.Payload]:
    from kvreg.core.builders import expectations  # YAML and pydantic: only a rebuild pays for them

    return expectations(listed)
