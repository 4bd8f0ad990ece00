"""How `kvreg bench` ends: the exit code that its rows come to, and the next step where none of them has a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvreg.core import notices
from kvreg.core.errors import GateFailed, Refused, wrong

if TYPE_CHECKING:
    from kvreg.bench.host import HostRow
    from kvreg.bench.results import Row
    from kvreg.bench.step.results import StepRow
    from kvreg.core.modes import Mode

    AnyRow = Row | StepRow | HostRow

NO_ROOM = re.compile(r"(can.?t|cannot) allocate memory|not enough memory|out of ?memory|MemoryError", re.IGNORECASE)
"""What torch says of a host and of a card that have no room, Python, and the bench of a step."""
SMALLER = "take a smaller --batch or --context"
SMALLER_STEP = "take a smaller --batch, --context or --layers"


def exit_code(rows: Sequence[AnyRow], modes: Sequence[Mode], *, smaller: str = SMALLER) -> int:
    """Return the exit code; says in one line on stderr why there is no time of a mode that was asked for.

    5 where a kernel of kvreg was wrong, 3 where none of kvreg in any of `modes` was measured, else 0. Where memory was
    the cause, of all rows or of some, the line says what to make `smaller`.
    """
    if any(row.maker == "kvreg" and row.status == "wrong" for row in rows):
        return GateFailed.exit_code
    tried = [row for row in rows if row.maker == "kvreg" and row.mode in modes and row.status != "refused"]
    failed = [row for row in tried if row.status != "ok"]
    lacking = [row for row in failed if NO_ROOM.search(row.detail)]
    if not failed:
        return 0
    if len(failed) < len(tried):
        if lacking:
            notices.warn(f"bench: memory was not enough for {len(lacking)} of {len(tried)} rows of kvreg; {smaller}")
        return 0
    cause = f"memory was not enough for {len(lacking)}" if lacking else "each row says why"
    remedy = smaller if lacking else "`kvreg doctor` says what this machine lacks"
    found = f"none of {len(tried)} ({cause})"
    notices.warn(wrong("bench", required="a row of kvreg that was measured", found=found, remedy=remedy))
    return Refused.exit_code
