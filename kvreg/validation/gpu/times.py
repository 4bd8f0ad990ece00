"""The stage `timings` of `ci/gpu`: the times that traces show."""

from __future__ import annotations

from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import FAILED, OK, SKIPPED


def timings(rig: Rig) -> tuple[str, str]:
    """Time what the traces show."""
    if not (rig.machine.is_card or rig.options.smoke):
        return SKIPPED, "no card"
    rig.run.cells = rig.grid
    rig.run.time()
    found = [(str(v.id), size, rig.run.timing_records(v, size)) for v, size in rig.run.timed()]
    rig.session.results["timings"] = [{"variant": v, "head_size": s, "points": p} for v, s, p in found]
    rig.session.results["bandwidth"] = rig.run.known_bandwidth()
    missing = sum(1 for *_, points in found if not points)
    return (FAILED if missing and not rig.run.cut_off else OK), f"{missing} without times" if missing else ""
