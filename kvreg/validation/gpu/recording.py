"""The stage `traces` of `ci/gpu`: the traces of what has passed, and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvreg.core.variants import Variant
from kvreg.validation import machine as machines
from kvreg.validation import report
from kvreg.validation.gpu.rig import Rig, in_checkout
from kvreg.validation.gpu.session import CUT_OFF, FAILED, OK, SKIPPED
from kvreg.validation.run import Verdict

TABLES = ("determinism", "interchange", "robust", "fuzz", "host", "pays", "tune", "space")
"""Stages whose results are rows of plain values; a key `failures` is left to the stage's line."""


def traces(rig: Rig) -> tuple[str, str]:
    """Write the traces of what has passed, and the report."""
    done = {each["name"]: each["status"] for each in rig.session.stages}
    if done["probe"] != OK:
        return SKIPPED, "the device gave no answer"
    rig.run.cells = (*rig.grid, *(rig.many() if done.get("seeds") == OK else ()))
    verdicts = rig.run.write(lambda variant: _folder(rig, variant))
    if rig.options.write == "repo" and not rig.options.smoke:
        verdicts = rig.run.write(lambda v: machines.evidence_folder(rig.machine, v, Path(), "repo"))
    (rig.session.work / "report.md").write_text(_report(rig, verdicts), encoding="utf-8")
    counts = {
        status: sum(1 for each in verdicts if each.status == status) for status in ("passed", "wrong", "unfinished")
    }
    text = ", ".join(f"{count} {status}" for status, count in counts.items())
    rig.session.results["verdicts"] = [
        {
            "variant": str(v.variant.id),
            "head_size": v.head_size,
            "status": v.status,
            "trace": v.trace_id,
            "kept": v.kept,
        }
        for v in verdicts
    ]
    return (FAILED if counts["wrong"] else CUT_OFF if counts["unfinished"] else OK), text


def _folder(rig: Rig, variant: Variant) -> Path:
    """Return where a trace lies in the archive."""
    if rig.options.smoke:  # too little to be evidence, so it must not land where evidence is looked for
        return rig.session.work / "smoke"
    return rig.session.work / in_checkout(rig.machine.owner(variant).evidence_dir)


def _report(rig: Rig, verdicts: Sequence[Verdict]) -> str:
    lines = [line for each in verdicts for line in each.lines]
    results = rig.session.results
    parts = [
        f"# {results.get('device')}: {json.dumps(results.get('versions'))}",
        report.table(("stage", "status", "seconds", "detail"), [tuple(each.values()) for each in rig.session.stages]),
        "## Attention, worst e",
        report.errors(lines),
        "## Writes, worst",
        report.writes(lines),
    ]
    for name in TABLES:
        rows = results.get(name) or []
        if rows:
            shown = [key for key in rows[0] if key != "failures"]
            numbers = [[_short(each.get(key)) for key in shown] for each in rows]
            parts += [f"## {name.capitalize()}", report.table(shown, numbers)]
    if results.get("timings"):
        bandwidth = results.get("bandwidth")
        limit = f"read bandwidth {bandwidth / 1e12:.3f} TB/s" if bandwidth else "read bandwidth not measured"
        body = [(each["variant"], each["head_size"], each["points"]) for each in results["timings"]]
        parts += ["## Times", limit, report.timings(body)]
    if results.get("bench"):
        parts += ["## Bench", *report.bench(results["bench"])]
    if results.get("step"):
        parts += ["## Step", report.step(results["step"])]
    failed = report.failures(lines)
    return "\n\n".join([*parts, *(["## Failures", failed] if failed else [])]) + "\n"


def _short(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
