"""From verdicts to tuned entries, and from a tuned file to the configs that a run must beat. Imports pydantic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.errors import BadFile
from kvreg.core.requests import Op
from kvreg.core.tuned_files import EntryRecord, read
from kvreg_tuning.session import Verdict
from kvreg_tuning.subjects import Config, Subject, limit_us

Measured = Literal["measured", "simulated"]


def entry_of(
    verdict: Verdict, device: Device, kernel_hash: str, source: Measured, bandwidth: float | None = None
) -> EntryRecord | None:
    """Return the entry of a bucket, the default's too where it won; None where nothing was right.

    `bandwidth`: measured bytes per second that the share of the limit refers to; None takes the data sheet's.
    """
    if verdict.winner is None or verdict.decision is None:
        return None
    decision, winner = verdict.decision, verdict.winner
    standing = decision.of(decision.winner)
    default_us = next((each.us for each in decision.standings if each.place == 0), None)
    limit = limit_us(verdict.subject, verdict.bucket, device, bandwidth)
    same_bits = winner.gate.get("bits") == verdict.default.gate.get("bits")
    return _entry(
        verdict.subject,
        verdict.bucket,
        winner.config,
        kernel_hash,
        source,
        latency_us=_short(standing.us),
        default_latency_us=_short(default_us),
        # Of the medians beside it; the race was decided by pairs.
        improvement=None if default_us is None else _short(1.0 - standing.us / default_us),
        tie=decision.tie,
        fraction_of_limit=_short(limit / standing.us) if limit else None,
        spread=_short(standing.spread),
        gate={**{name: winner.gate[name] for name in ("e", "cosine", "seeds")}, "same_bits_as_default": same_bits},
        resources=dict(winner.resources),
    )


def estimated_entry(
    subject: Subject,
    bucket: Bucket,
    config: Config,
    kernel_hash: str,
    us: float,
    default_us: float | None,
    **fields: object,
) -> EntryRecord:
    """Return the entry of a config that a model of costs has chosen; its times are the model's."""
    return _entry(
        subject,
        bucket,
        config,
        kernel_hash,
        "estimated",
        latency_us=_short(us),
        default_latency_us=_short(default_us),
        improvement=None if default_us is None else _short(1.0 - us / default_us),
        **fields,
    )


def stored_configs(path: Path, subject: Subject, kernel_hash: str, *, simulated: bool = False) -> dict[str, Config]:
    """Return bucket -> the config of a tuned file's entry for this subject, of this kernel and not estimated."""
    try:
        entries: Sequence[EntryRecord] = read(path, simulated=simulated).entries if path.exists() else ()
    except BadFile:
        return {}  # the writer sets it aside and says so
    # One bucket stands for all: of the subject's fields only it differs.
    return {
        entry.bucket: dict(entry.config)
        for entry in entries
        if entry.kernel_hash == kernel_hash and entry.source != "estimated" and _is_of(entry, subject)
    }


def _is_of(entry: EntryRecord, subject: Subject) -> bool:
    group = entry.op is Op.WRITE or entry.group == subject.group
    names = ("variant", "op", "mode", "head_size", "page", "dtype", "layout")
    same = all(getattr(entry, name) == getattr(subject, name) for name in names)
    return group and same and set(entry.features) == set(subject.features)


def _entry(
    subject: Subject, bucket: Bucket, config: Config, kernel_hash: str, source: str, **fields: object
) -> EntryRecord:
    values: Mapping[str, object] = {
        **{name: getattr(subject, name) for name in ("variant", "op", "mode", "head_size", "group", "page", "dtype")},
        "layout": subject.layout,
        "features": list(subject.features),
        "bucket": str(bucket),
        "config": dict(config),
        "kernel_hash": kernel_hash,
        "source": source,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **fields,
    }
    return EntryRecord.model_validate(values)


def _short(value: float | None) -> float | None:
    """Five digits: more than any clock resolves."""
    return None if value is None else float(f"{value:.5g}")
