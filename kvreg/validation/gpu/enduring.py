"""The stage `robust` of `ci/gpu`: what kernels must survive, by every variant that the device offers.

The checks are those of `python -m kvreg.validation.robust`, each kept in the journal; random calls end the stage.
"""

from __future__ import annotations

import os
from typing import Any

from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import CUT_OFF, FAILED, OK
from kvreg.validation.journal import key_of
from kvreg.validation.robust import suite
from kvreg.validation.robust.findings import Finding
from kvreg.validation.unproven import Place, place_of

LIMIT_S = 240.0
"""For the checks before the random calls; compiling takes the most of it."""
FUZZ_S = 60.0
MOST_WORKERS = 8
"""Processes side by side on one card: as many as there are line-ups of variants, and the wrong calls."""


def robust(rig: Rig) -> tuple[str, str]:
    """Run every check, then random calls for a minute."""
    place = place_of("interpreter" if rig.machine.numerics == "interpreter" else rig.machine.place)
    findings: dict[str, Finding] = {}
    with rig.limited(LIMIT_S):
        due = _checks(rig, place, findings)
    if not rig.options.smoke:
        due += _own_workers(rig, place, findings)
    rig.session.results["robust"] = [{"check": name, **each.to_json()} for name, each in findings.items()]
    failed = [f"{name}: {text}" for name, each in findings.items() for text in each.failures[:2]]
    skipped = [name for name, each in findings.items() if each.status == "skipped"]
    text = f"{len(findings)} checks, {len(skipped)} skipped"
    missing = due - len(findings) > 0
    return (FAILED if failed else CUT_OFF if missing else OK), "; ".join([text, *failed[:6]])


def _checks(rig: Rig, place: Place, findings: dict[str, Finding]) -> int:
    """Run the checks that are tasks; returns how many there are."""
    tasks = suite.tasks(place)
    if rig.options.smoke:  # those of the first line-up
        tasks = [task for task in tasks if task.bundle == tasks[0].bundle]
    keys = [_key(rig, suite.title(task)) for task in tasks]
    open_ones = []
    for index, key in enumerate(keys):
        known = rig.journal.get(key)
        if known is not None and known["status"] == "ok":
            findings[suite.title(tasks[index])] = Finding.of_json(known["value"])
        else:
            open_ones.append(index)
    shown = len(tasks) + (0 if rig.options.smoke else len(suite.OWN_WORKERS))
    rig.session.stage("robust", shown, len(findings))
    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    for number, outcome in rig.run.outcomes([tasks[i] for i in open_ones], workers):
        index = open_ones[number]
        name, finding = suite.title(tasks[index]), suite.found(outcome)
        findings[name] = finding
        keep(rig, name, finding)
        if outcome.status != "ok":
            rig.session.note(outcome.traceback or outcome.output)
            rig.run.require_device(outcome)
    return len(tasks)


def _own_workers(rig: Rig, place: Place, findings: dict[str, Finding]) -> int:
    """Run the checks that start workers of their own, while time is left for them; returns how many there are."""
    for name, check in suite.OWN_WORKERS.items():
        known = rig.journal.get(_key(rig, name))
        if known is not None and known["status"] == "ok":
            findings[name] = Finding.of_json(known["value"])
        elif rig.left_s() >= check.needs_s:
            findings[name] = check.run(place)
            keep(rig, name, findings[name])
    if rig.left_s() > 0:
        _random_calls(rig, place, findings)
    return len(suite.OWN_WORKERS) + 1


def _random_calls(rig: Rig, place: Place, findings: dict[str, Finding]) -> None:
    seconds = min(FUZZ_S, rig.left_s())
    workers = max(1, (os.cpu_count() or 2) // 2)
    findings[suite.FUZZ], tally = suite.fuzzed(place, seconds, workers, rig.session.note)
    rig.session.results["fuzz"] = [
        {"mode": mode, "cases": count, "worst e": tally.worst.get(mode)} for mode, count in sorted(tally.modes.items())
    ]


def keep(rig: Rig, name: str, finding: Finding) -> None:
    """Put a finding into the journal; only what was ok is taken from there."""
    line: dict[str, Any] = {"status": finding.status, "error": "; ".join(finding.failures), "value": finding.to_json()}
    rig.journal.append(_key(rig, name), {**line, "stage": "robust"})
    rig.session.advance(name, line)


def _key(rig: Rig, name: str) -> str:
    """Return what the journal knows a check by: it depends on every kernel of the device and on the versions."""
    hashes = {str(each.id): rig.run.hash_of(each) for each in rig.variants}
    identity = {"device": rig.machine.device.key, "numerics": rig.machine.numerics, **rig.run.versions}
    return key_of({"stage": "robust", "check": name, "hashes": hashes, **identity})
