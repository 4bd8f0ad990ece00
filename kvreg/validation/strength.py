"""Which of two records of one kernel stays: a weaker one never takes the place of a stronger one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvreg.core import traces
from kvreg.core.errors import BadFile
from kvreg.core.traces import Trace


def kept_instead(path: Path, record: Mapping[str, Any]) -> str | None:
    """Return why the trace at `path` stays though `record` could take its place; None where it does not.

    Only a sound trace of the same kernel stays. It is stronger when the device itself made it and the interpreter the
    new one; when it covers features that the new one does not; or when the new one, with as many features, was made
    with the same versions and has fewer seeds or no times.
    """
    known = _sound(path)
    if known is None or known.kernel_hash != record["kernel_hash"]:
        return None
    if known.numerics != record["numerics"]:
        return f"{known.id} was made on the device itself and stays" if known.numerics == "device" else None
    more = [word for word in features_of(known) if word not in record["features"]]
    if more and set(record["features"]) <= set(features_of(known)):
        return f"{known.id} covers {', '.join(more)} too and stays; --features replaces it"
    if set(features_of(known)) != set(record["features"]) or known.versions != record["versions"]:
        return None
    if known.gate.seeds > record["gate"]["seeds"]:
        return f"{known.id} has {known.gate.seeds} seeds and stays"
    if known.timings and not record["timings"]:
        return f"{known.id} has times and stays"
    return None


def features_of(trace: Trace) -> tuple[str, ...]:
    """Return the feature words that a trace covers."""
    return traces.to_evidence(trace).features


def _sound(path: Path) -> Trace | None:
    if not path.is_file():
        return None
    try:
        known = traces.read_trace(path)
    except BadFile:
        return None
    return None if traces.problems(known, path) else known
