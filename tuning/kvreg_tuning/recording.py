"""Recorded spaces: every trial of a run in one compressed file; kvreg_tuning.replay runs one without a card.

    {"schema": 1, "device": "h200", "versions": {...}, "spaces": [{subject, buckets, knobs, configs, kernel_hash}]}
    {"space": 0, "bucket": "b32-c8192", "config": {...}, "launch": "...", "result": "ok", "us": 85.2, ...}

A gzip of JSON lines. Each config of a space has one row in each of its buckets, and the first config is the default,
which was tried in all of them: what replays a space asks for any of these.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvreg.core.buckets import Bucket
from kvreg.core.errors import BadFile, KvregError, wrong
from kvreg.core.requests import Op
from kvreg.core.shards import replace_file
from kvreg_tuning.journal import Journal, Known
from kvreg_tuning.outcomes import RESULTS, Trial
from kvreg_tuning.spaces import Candidates, Space
from kvreg_tuning.subjects import Config, Subject, text_of

SCHEMA = 1

Key = tuple[Subject, str, str]
"""Of a trial: subject, bucket and the config's text."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded space of one device."""

    device: str
    versions: Mapping[str, str]
    spaces: tuple[Space, ...]
    trials: Mapping[Key, Trial]

    def best(self, subject: Subject, bucket: Bucket) -> Trial | None:
        """Return the fastest right config that was recorded."""
        timed = [
            trial
            for (of, where, _), trial in self.trials.items()
            if of == subject and where == str(bucket) and trial.us is not None and trial.result == "ok"
        ]
        return min(timed, key=lambda each: each.us or 0.0, default=None)

    def regret(self, subject: Subject, bucket: Bucket, config: Config) -> float | None:
        """Return how much slower a config was recorded than the best one: 0.05 is 5 %. None where it has no time."""
        best, chosen = self.best(subject, bucket), self.trials.get((subject, str(bucket), text_of(config)))
        if best is None or chosen is None or best.us is None or chosen.us is None:
            return None
        return chosen.us / best.us - 1.0


def write(path: Path, device: str, versions: Mapping[str, str], spaces: Sequence[Space], journal: Journal) -> int:
    """Write what the journal knows of these spaces, atomically; returns the number of trials.

    A config that was not tried in every bucket is not in the recording's space, so that no replay asks for it, and a
    space whose default was not is left out. Of a trial that several processes ran at once the first counts.
    """
    place = {space.subject: number for number, space in enumerate(spaces)}
    first: dict[Key, Trial] = {}
    for known in journal.trials():
        if _belongs(known, place, spaces, versions):
            first.setdefault((known.subject, known.trial.bucket, text_of(known.trial.config)), known.trial)
    counts = Counter((subject, text) for subject, _, text in first)
    whole = [space for space in spaces if _is_whole(space, space.candidates.configs[0], counts)]
    place = {space.subject: number for number, space in enumerate(whole)}
    head = {
        "schema": SCHEMA,
        "device": device,
        "versions": dict(versions),
        "spaces": [_space(space, counts) for space in whole],
    }
    rows = [{"space": place[of], **_trial(trial)} for (of, *_), trial in first.items() if of in place]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *rows))
    replace_file(path, gzip.compress(text.encode(), mtime=0))
    return len(rows)


def read(path: Path) -> Recording:
    """Read a recording; raises BadFile for anything else, and for one that has lost rows or has some twice."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            loaded = [json.loads(line) for line in stream]
        return _parse(loaded)
    except (*_READING, *_MISSHAPEN) as error:
        raise BadFile(
            wrong(
                f"recording {path}",
                required=f"a recorded space of schema {SCHEMA}",
                found=f"{type(error).__name__} {error}" if isinstance(error, _MISSHAPEN) else str(error),
                remedy="`kvreg tune --record FILE` writes one",
            )
        ) from None


_READING = (OSError, EOFError, zlib.error, ValueError, KvregError)
"""Raised with words that say what is wrong with a file."""
_MISSHAPEN = (KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""Raised by what is JSON and no recording."""


def _parse(loaded: Sequence[Any]) -> Recording:
    """Return the recording that these lines are; raises one of _READING or _MISSHAPEN where they are none."""
    if not loaded:
        raise ValueError("an empty file")
    head, *rows = loaded
    if head["schema"] != SCHEMA or type(head["schema"]) is not int:
        raise ValueError(f"schema {head['schema']}")
    if not head["spaces"]:
        raise ValueError("no space")
    bare = [_read_space(each) for each in head["spaces"]]
    if len({space.subject for space in bare}) < len(bare):
        raise ValueError("a space twice")
    trials: dict[Key, Trial] = {}
    for number, row in enumerate(rows, 2):
        space, trial = _read_row(row, bare, f"line {number}")
        key = (space.subject, trial.bucket, text_of(trial.config))
        if key in trials:
            raise ValueError(f"line {number}: a second row of {key[2]} in {trial.bucket}")
        trials[key] = trial
    for space in bare:
        _require_whole(space, trials)
    spaces = tuple(_with_pruned(space, trials) for space in bare)
    return Recording(str(head["device"]), dict(head["versions"]), spaces, trials)


def _belongs(known: Known, place: Mapping[Subject, int], spaces: Sequence[Space], versions: Mapping[str, str]) -> bool:
    """Whether a row of the journal is one of these spaces, made with this kernel and these versions."""
    if known.subject not in place:
        return False
    space = spaces[place[known.subject]]
    same = known.identity == {"kernel_hash": space.kernel_hash, **versions}
    return same and known.trial.bucket in map(str, space.buckets)


def _is_whole(space: Space, config: Config, counts: Mapping[tuple[Subject, str], int]) -> bool:
    """Whether a config has a row in each of a space's buckets."""
    return counts[space.subject, text_of(config)] == len(space.buckets)


def _space(space: Space, counts: Mapping[tuple[Subject, str], int]) -> dict[str, Any]:
    return {
        "subject": space.subject.to_json(),
        "buckets": [str(bucket) for bucket in space.buckets],
        "knobs": {name: list(values) for name, values in space.candidates.knobs.items()},
        "configs": [dict(config) for config in space.candidates.configs if _is_whole(space, config, counts)],
        "kernel_hash": space.kernel_hash,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    """Return a trial without what is empty."""
    return {name: value for name, value in asdict(trial).items() if value not in ("", None, {}, 0, 0.0)}


def _read_space(record: Mapping[str, Any]) -> Space:
    """Return a space as the head has it, before any row has told what was pruned."""
    subject = _read_subject(record["subject"])
    if not isinstance(record["kernel_hash"], str):
        raise ValueError(f"kernel_hash {record['kernel_hash']!r} of {subject}")
    buckets = tuple(map(Bucket.parse, record["buckets"]))
    if not buckets:
        raise ValueError(f"no bucket of {subject}")
    for each in buckets:
        subject.request(each)  # raises for a mode or a layout that is none
        if not each.is_of(Op(subject.op)):
            raise ValueError(f"bucket {each} of {subject}, a {subject.op}")
    configs = tuple(_read_config(each, str(subject)) for each in record["configs"])
    if not configs:
        raise ValueError(f"no default of {subject}")
    if len(set(map(text_of, configs))) < len(configs):
        raise ValueError(f"a config of {subject} twice")
    knobs = {name: tuple(values) for name, values in record["knobs"].items()}
    if not all(knobs.values()):
        raise ValueError(f"a knob of {subject} without values")
    return Space(subject, buckets, Candidates(knobs, configs, ()), record["kernel_hash"])


def _read_subject(record: Mapping[str, Any]) -> Subject:
    """Return a subject whose fields are of their types and whose sizes are such as memory has."""
    subject = Subject.from_json(record)
    for each in fields(Subject):
        value = record[each.name]
        if each.name in SIZES:
            good = type(value) is int and 1 <= value <= MOST_SIZE
        elif each.name == "features":
            good = isinstance(value, list) and all(isinstance(word, str) and word.isprintable() for word in value)
        else:
            good = isinstance(value, str) and value.isprintable()
        if not good:
            raise ValueError(f"{each.name} {value!r}")
    return subject


SIZES = frozenset(("head_size", "group", "kv_heads", "page"))
"""Fields of a subject that are counted."""
MOST_SIZE = 1 << 20
"""Far above any head size, group, number of heads or page."""
MOST_US = 1e12
"""Twelve days, in microseconds: no trial takes so long, and sums stay finite."""


def _read_config(record: Any, of: str) -> Config:
    if not isinstance(record, dict) or not all(type(value) is int for value in record.values()):
        raise ValueError(f"{of}: config {record!r}")
    return record


def _read_row(row: Any, spaces: Sequence[Space], where: str) -> tuple[Space, Trial]:
    """Return a line's trial and the space that it is of."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: no object")
    given = dict(row)
    place = given.pop("space")
    if type(place) is not int or not 0 <= place < len(spaces):
        raise ValueError(f"{where}: space {place!r} of {len(spaces)}")
    _read_config(given["config"], where)
    odd = [name for name, kind in KINDS.items() if not isinstance(given.get(name, kind()), kind)]
    if odd:
        raise ValueError(f"{where}: {odd[0]} {given[odd[0]]!r}")
    for name in sorted(NUMBERS & given.keys()):
        _require_number(given[name], f"{where}: {name}", optional=name in OPTIONAL)
    trial, space = Trial(**given), spaces[place]
    if trial.bucket not in map(str, space.buckets):
        raise ValueError(f"{where}: bucket {trial.bucket}, which is none of its space")
    if trial.result not in RESULTS:
        raise ValueError(f"{where}: result {trial.result}")
    if trial.result in ("ok", "slow") and not trial.us:
        raise ValueError(f"{where}: {trial.result} without a time")
    return space, trial


KINDS: Mapping[str, type] = {"bucket": str, "reason": str, "launch": str, "gate": dict, "resources": dict}
OPTIONAL = {"us", "spread"}
NUMBERS = OPTIONAL | {"samples", "compile_s", "gate_s", "bench_s"}
"""Fields of a trial that a replay computes with."""


def _require_number(value: Any, name: str, *, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) not in (int, float) or not 0 <= value <= MOST_US:
        raise ValueError(f"{name} {value!r}")


def _require_whole(space: Space, trials: Mapping[Key, Trial]) -> None:
    """Raise ValueError where a config of a space lacks a row, or the default was not tried."""
    default, *_ = space.candidates.configs
    keys = [(space.subject, str(where), text_of(each)) for each in space.candidates.configs for where in space.buckets]
    missing = [key for key in keys if key not in trials]
    if missing:
        (subject, bucket, config), *others = missing
        more = f" (and {len(others)} more)" if others else ""
        raise ValueError(f"no row of {subject}, {config} in {bucket}{more}")
    for key in keys[: len(space.buckets)]:
        if trials[key].result == "constraint":
            raise ValueError(f"{space.subject}: the default was not tried in {key[1]}: {text_of(default)}")


def _with_pruned(space: Space, trials: Mapping[Key, Trial]) -> Space:
    """Return a space with what its rows say was pruned."""
    pruned = tuple(
        (trial.config, trial.bucket, trial.reason)
        for (of, *_), trial in trials.items()
        if of == space.subject and trial.result == "constraint"
    )
    return replace(space, candidates=replace(space.candidates, pruned=pruned))
