"""Everything that needs a card, in one command with one archive: `ci/gpu`.

Stages run in their order, each in a try of its own; what is finished lies in the archive after every stage, and a
call that is given an earlier archive goes on behind it. Without a card `--interpreter --smoke` or `--device cpu
--smoke` tries the same path at tiny sizes.

Longer than its neighbours: the stages share one state, and an order that is easier to follow in one place.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kvreg
from kvreg.core import environment
from kvreg.core.errors import DeviceUnavailable, KvregError, UsageError, wrong
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant
from kvreg.validation import archive, gpu_tune, report
from kvreg.validation import machine as machines
from kvreg.validation.cells import HEAD_SIZES, PROFILES, Cell, many_seeds_only, work_list
from kvreg.validation.journal import Journal, key_of
from kvreg.validation.run import Run, Verdict
from kvreg_tuning.pool import Task

STAGES = ("probe", "compile", "gate", "seeds", "determinism", "interchange", "timings", "tune", "space", "traces")
EXTRA = ("tune", "space")
"""Stages that run only when they are named: half an hour for one kernel's launch parameters validates nothing."""
USUAL = tuple(name for name in STAGES if name not in EXTRA)
SEED_HEADS = (64, 96, 128, 256)
EXCHANGE_HEADS = (64, 96, 128)
EXCHANGE_GROUPS = (4, 1)
WRITES = ((32, 32, 96), (8192, 8, 128))
"""Tokens, KV heads and head size of the repeated writes: one decode step and one long prefill."""

REPEATS = 200
RESERVE_S = 25.0
"""Kept of the time limit for the traces and the archive."""
ARCHIVE_EVERY_S = 60.0
STAGE_TASK_TIMEOUT_S = 180.0

PLACES = ("--out", "--work", "--resume")
"""Options that name folders of the machine."""

OK, FAILED, CUT_OFF, LOST, SKIPPED = "ok", "failed", "cut off", "device lost", "skipped"
EXIT = {OK: 0, SKIPPED: 0, CUT_OFF: 4, FAILED: 5, LOST: 6}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked of one call."""

    device: str | None = None
    interpreter: bool = False
    smoke: bool = False
    stages: tuple[str, ...] = USUAL
    head_sizes: tuple[int, ...] = ()
    limit_s: float | None = None
    peer: Path | None = None
    processes: int | None = None
    write: str = "archive"
    """`archive` keeps the traces in the archive, `repo` puts them into the checkout as well."""
    command: str = "ci/gpu"


@dataclass(slots=True)
class Session:
    """One call: its work folder, its archive, and what every stage has found."""

    options: Options
    work: Path
    archive: Path
    began: float = field(default_factory=time.monotonic)
    stages: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    packed: float = 0.0
    _stage: str = ""
    _done: int = 0
    _total: int = 0
    _shown: float = 0.0

    # What kvreg.validation.run.View asks for.
    def stage(self, name: str, total: int, done: int) -> None:
        """Note the parts of a stage."""
        self._stage, self._done, self._total = name, done, total
        self.note(f"{name}: {total} parts, {done} known")

    def advance(self, subject: str, line: Mapping[str, Any]) -> None:
        """Count a part, show a failed one, and rewrite the archive now and then."""
        self._done += 1
        if line["status"] != "ok":
            self.note(f"{self._stage}: {subject}: {line['status']}: {line.get('error', '')}")
        now = time.monotonic()
        if now - self._shown > 10:
            self._shown = now
            self.note(f"{self._stage}: {self._done} of {self._total}")
        if now - self.packed > ARCHIVE_EVERY_S:
            self.save()

    def note(self, text: str) -> None:
        """Print a line and keep it in the archive's log."""
        line = f"[{time.monotonic() - self.began:6.1f} s] {text}"
        print(line, flush=True)
        with open(self.work / "log.txt", "a", encoding="utf-8") as log:
            log.write(line + "\n")

    def save(self) -> None:
        """Write the results so far and the archive."""
        self.packed = time.monotonic()
        document = {"schema": 1, "command": self.options.command, "stages": self.stages, **self.results}
        (self.work / "results.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        archive.pack(self.work, self.archive)


def run(options: Options, work: Path, target: Path) -> int:
    """Run the stages asked for; returns the exit code."""
    work.mkdir(parents=True, exist_ok=True)
    session = Session(options, work, target)
    machine = machines.machine_for(options.device, interpreter=options.interpreter, default=environment.read().device)
    with Journal(work / "journal.jsonl") as journal:
        stages = _Stages(session, machine, journal)
        status = OK
        for name in STAGES:
            status = max(status, _stage(session, stages, name, status), key=lambda each: EXIT[each])
            session.save()
    session.note("stages: " + ", ".join(f"{each['name']} {each['status']}" for each in session.stages))
    print(f"{target}", flush=True)
    return EXIT[status]


def _stage(session: Session, stages: _Stages, name: str, so_far: str) -> str:
    """Run one stage in a try of its own and write down what became of it."""
    begun = time.monotonic()
    status, detail = OK, ""
    if name not in session.options.stages and name != "probe":
        status, detail = SKIPPED, "not asked for"
    elif so_far == LOST and name != "traces":
        status, detail = SKIPPED, "the device is lost"
    elif stages.left_s() <= 0 and name != "traces":
        status, detail = CUT_OFF, "no time left"
    else:
        try:
            status, detail = stages.call(name)
        except DeviceUnavailable as error:
            status, detail = LOST, error.message
        except KvregError as error:
            status, detail = FAILED, error.message
        except Exception as error:
            status, detail = FAILED, f"{type(error).__name__}: {error}"
            session.note(traceback.format_exc())
    seconds = round(time.monotonic() - begun, 1)
    session.stages.append({"name": name, "status": status, "seconds": seconds, "detail": detail})
    if status != SKIPPED or name in session.options.stages:
        session.note(f"stage {name}: {status}{': ' + detail if detail else ''} ({seconds} s)")
    return status


class _Stages:
    """The stages themselves; each returns its status and one line about it."""

    def __init__(self, session: Session, machine: machines.Machine, journal: Journal) -> None:
        options = session.options
        self.session, self.options, self.machine, self.journal = session, options, machine, journal
        self.heads = options.head_sizes or ((64,) if options.smoke else HEAD_SIZES)
        self.variants = machine.variants()
        profile = PROFILES["smoke" if options.smoke else "device"]
        self.grid = tuple(work_list(self.variants, self.heads, profile))
        self.deadline = None if options.limit_s is None else session.began + options.limit_s - RESERVE_S
        self.run = Run(
            machine,
            self.variants,
            self.grid,
            journal,
            options.command,
            view=session,
            jobs=os.cpu_count() or 1,
            deadline=self.deadline,
            smoke=options.smoke,
        )

    def call(self, name: str) -> tuple[str, str]:
        """Run the stage of a name."""
        stage: Callable[[], tuple[str, str]] = getattr(self, name)
        self.run.cut_off = False
        status, detail = stage()
        return (CUT_OFF, detail) if status == OK and self.run.cut_off else (status, detail)

    def left_s(self) -> float:
        """Return the seconds until stages must end."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def probe(self) -> tuple[str, str]:
        """Ask the device who it is."""
        probed = self.run.probe()
        self.session.results |= {
            "device": self.machine.device.key,
            "numerics": self.machine.numerics,
            "versions": dict(self.run.versions),
            "probed": dict(probed),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return OK, f"{probed['card']}, torch {probed['torch']}, Triton {probed['triton']}"

    def compile(self) -> tuple[str, str]:
        """Compile everything in parallel processes."""
        if not self.machine.is_card:
            return SKIPPED, "nothing is compiled without a card"
        self.run.cells = (*self.grid, *self._many())
        self.run.compile(self.options.processes)
        return OK, ""

    def gate(self) -> tuple[str, str]:
        """Judge the grid with three seeds."""
        return self._judge(self.grid)

    def seeds(self) -> tuple[str, str]:
        """Judge 200 sequences of one batch, a seed each."""
        return self._judge(self._many())

    def determinism(self) -> tuple[str, str]:
        """Repeat int4 writes beside other work, and vLLM's where its files are given."""
        of = self._write_variant()
        writes = ((20, 2, 96),) if self.options.smoke else WRITES
        common = {"variant": str(of.id), **self._where(), "repeats": 5 if self.options.smoke else REPEATS}
        tasks = []
        for tokens, heads, size in writes:
            shape = {"tokens": tokens, "kv_heads": heads, "head_size": size}
            tasks += [{**common, **shape, "layout": layout} for layout in ("planar.1", "inline.1")]
            if self._peer():
                tasks.append({**common, **shape, "peer": self._peer()})
        found, missing = self._tasks("determinism", "kvreg.validation.determinism:repeat_writes", tasks, of)
        ours = [each for each in found if each["variant"] != "vllm"]
        counts = [
            f"{each['variant']} {each['tokens']} tokens {each['layout']}: {each['differing']} of {each['repeats']}"
            for each in found
        ]
        text = "differing writes: " + "; ".join(counts)
        wrong_ones = any(each["differing"] for each in ours)
        return (FAILED if wrong_ones or missing else OK), "; ".join([text, *missing])

    def interchange(self) -> tuple[str, str]:
        """Exchange inline caches with vLLM's kernels."""
        if not self._peer():
            return SKIPPED, "no --peer"
        heads, groups = ((64,), (4,)) if self.options.smoke else (EXCHANGE_HEADS, EXCHANGE_GROUPS)
        small: dict[str, Any] = {"contexts": [1, 17], "inputs": ["normal"], "seeds": 1} if self.options.smoke else {}
        tasks = [
            {"peer": self._peer(), **self._where(), "head_size": size, "group": group, **small}
            for size in heads
            for group in groups
        ]
        found, missing = self._tasks(
            "interchange", "kvreg.validation.interchange:exchange", tasks, self._write_variant()
        )
        bad = [failure for each in found for failure in each["failures"]]
        return (FAILED if bad or missing else OK), "; ".join([f"{len(found)} exchanged", *bad[:4], *missing])

    def timings(self) -> tuple[str, str]:
        """Time what the traces show."""
        if not (self.machine.is_card or self.options.smoke):
            return SKIPPED, "no card"
        self.run.cells = self.grid
        self.run.time()
        found = [(str(v.id), size, self.run.timing_records(v, size)) for v, size in self.run.timed()]
        self.session.results["timings"] = [{"variant": v, "head_size": s, "points": p} for v, s, p in found]
        self.session.results["bandwidth"] = self.run.known_bandwidth()
        missing = sum(1 for *_, points in found if not points)
        return (FAILED if missing and not self.run.cut_off else OK), f"{missing} without times" if missing else ""

    def tune(self) -> tuple[str, str]:
        """Tune int4 decode and race its finalists again and again."""
        return self._tuned("tune", gpu_tune.tune)

    def space(self) -> tuple[str, str]:
        """Record the whole space of int4 decode."""
        return self._tuned("space", gpu_tune.space)

    def _tuned(
        self, name: str, stage: Callable[[gpu_tune.Asked], tuple[list[dict[str, Any]], bool]]
    ) -> tuple[str, str]:
        asked = gpu_tune.Asked(
            self.machine,
            self.run.versions,
            self.session.work,
            self.left_s(),
            self.options.smoke,
            self.session.note,
        )
        found, cut_off = stage(asked)
        self.session.results[name] = found
        wrong_ones = [each for each in found if each["best_us"] is None]
        gains = ", ".join(f"{each['variant']} {each['bucket']} {each['gain']:+.1%}" for each in found)
        return (FAILED if wrong_ones else CUT_OFF if cut_off else OK), gains

    def traces(self) -> tuple[str, str]:
        """Write the traces of what has passed, and the report."""
        done = {each["name"]: each["status"] for each in self.session.stages}
        if done["probe"] != OK:
            return SKIPPED, "the device gave no answer"
        self.run.cells = (*self.grid, *(self._many() if done.get("seeds") == OK else ()))
        verdicts = self.run.write(self._folder)
        if self.options.write == "repo" and not self.options.smoke:
            verdicts = self.run.write(lambda v: machines.evidence_folder(self.machine, v, Path(), "repo"))
        (self.session.work / "report.md").write_text(self._report(verdicts), encoding="utf-8")
        counts = {
            status: sum(1 for each in verdicts if each.status == status)
            for status in ("passed", "wrong", "unfinished")
        }
        text = ", ".join(f"{count} {status}" for status, count in counts.items())
        self.session.results["verdicts"] = [
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

    def _judge(self, cells: Sequence[Cell]) -> tuple[str, str]:
        self.run.cells = tuple(cells)
        self.run.judge()
        verdicts = self.run.verdicts()
        wrong_ones = sum(1 for each in verdicts for _ in each.failed)
        return (FAILED if wrong_ones else OK), f"{len(cells)} cells, {wrong_ones} failed"

    def _many(self) -> list[Cell]:
        heads = [size for size in SEED_HEADS if size in self.heads]
        return [] if self.options.smoke else many_seeds_only(work_list(self.variants, heads, PROFILES["device-long"]))

    def _tasks(
        self, name: str, function: str, arguments: Sequence[dict[str, Any]], of: Variant
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Run tasks one by one, each in the journal; returns results and what has none."""
        keys = [
            key_of({"stage": name, **each, "peer": bool(each.get("peer")), **self.run.identity(str(of.id))})
            for each in arguments
        ]
        open_ones = [i for i, key in enumerate(keys) if (self.journal.get(key) or {}).get("status") != "ok"]
        self.session.stage(name, len(arguments), len(arguments) - len(open_ones))
        missing = []
        tasks = [Task(function, arguments[i], STAGE_TASK_TIMEOUT_S, bundle=name) for i in open_ones]
        for place, outcome in self.run.outcomes(tasks, 1):
            i = open_ones[place]
            line = {"status": outcome.status, "error": outcome.error, "value": outcome.value, "stage": name}
            self.journal.append(keys[i], line)
            self.session.advance(str(arguments[i]), line)
            if outcome.status != "ok":
                missing.append(f"{outcome.status}: {outcome.error}")
                self.session.note(outcome.traceback or outcome.output)
                self.run.require_device(outcome)
        known = [self.journal.get(key) for key in keys]
        found = [line["value"] for line in known if line is not None and line["status"] == "ok"]
        self.session.results[name] = found
        return found, missing

    def _report(self, verdicts: Sequence[Verdict]) -> str:
        lines = [line for each in verdicts for line in each.lines]
        results = self.session.results
        parts = [
            f"# {results.get('device')}: {json.dumps(results.get('versions'))}",
            report.table(
                ("stage", "status", "seconds", "detail"), [tuple(each.values()) for each in self.session.stages]
            ),
            "## Attention, worst e",
            report.errors(lines),
            "## Writes, worst",
            report.writes(lines),
        ]
        for name in ("determinism", "interchange", "tune", "space"):
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
        failed = report.failures(lines)
        return "\n\n".join([*parts, *(["## Failures", failed] if failed else [])]) + "\n"

    def _folder(self, variant: Variant) -> Path:
        """Return where a trace lies in the archive: as in the checkout, so that unpacking there puts it in place."""
        if self.options.smoke:  # too little to be evidence, so it must not land where evidence is looked for
            return self.session.work / "smoke"
        evidence = self.machine.owner(variant).evidence_dir
        root = Path(kvreg.__file__).parent.parent
        inside = evidence.relative_to(root) if evidence.is_relative_to(root) else Path("evidence")
        return self.session.work / inside

    def _peer(self) -> str | None:
        return str(self.options.peer.absolute()) if self.options.peer else None

    def _where(self) -> dict[str, str]:
        return {"device": self.machine.device.key, "place": self.machine.place}

    def _write_variant(self) -> Variant:
        return next(v for v in self.variants if v.op is Op.WRITE and v.mode is Mode.INT4_PER_TOKEN_HEAD)


def _short(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value


def parse(arguments: Sequence[str]) -> tuple[Options, Path, Path, Path | None]:
    """Return (options, work folder, archive, what to resume from); raises UsageError for a wrong stage."""
    parser = argparse.ArgumentParser(prog="ci/gpu", description="Run everything that needs a card; leave one archive.")
    parser.add_argument("--device", help="device to validate (default: KVREG_DEVICE, else the card)")
    parser.add_argument("--interpreter", action="store_true", help="take Triton's interpreter instead of a card")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to try the path")
    parser.add_argument(
        "--stages", default=",".join(USUAL), help=f"comma-separated (default: all but {', '.join(EXTRA)})"
    )
    parser.add_argument("--head-size", type=int, action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--limit-s", type=float, help="stop cleanly before so many seconds have passed")
    parser.add_argument("--resume", type=Path, help="archive or folder of an earlier call to go on from")
    parser.add_argument("--peer", type=Path, help="folder of vLLM's five kernel files, for the interchange")
    parser.add_argument("--processes", type=int, help="compiling processes (default: the cores)")
    parser.add_argument("--write", choices=("archive", "repo"), default="archive", help="where traces go")
    parser.add_argument("--out", type=Path, help="folder of the archive (default: $OUT, else gpu-results)")
    parser.add_argument("--work", type=Path, default=Path("gpu-results/work"), help="folder of the journal and traces")
    asked = parser.parse_args(arguments)
    stages = tuple(word for word in asked.stages.split(",") if word)
    for word in stages:
        if word not in STAGES:
            raise UsageError(
                wrong("--stages", required=", ".join(STAGES), found=repr(word), remedy="take some of these")
            )
    options = Options(
        device=asked.device,
        interpreter=asked.interpreter,
        smoke=asked.smoke,
        stages=stages,
        head_sizes=tuple(asked.head_size),
        limit_s=asked.limit_s,
        peer=asked.peer,
        processes=asked.processes,
        write=asked.write,
        command=shlex.join(["ci/gpu", *_without_places(arguments)]),
    )
    out = asked.out or Path(os.environ.get("OUT") or "gpu-results")
    return options, asked.work, out / archive.NAME, asked.resume


def _without_places(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the folders that results go to and come from: those are the machine's own."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.split("=")[0] in PLACES:
            skip = "=" not in argument
        else:
            kept.append(argument)
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every deliberate error is one line and its exit code."""
    try:
        options, work, target, resume = parse(sys.argv[1:] if arguments is None else arguments)
        if resume is not None:
            print(f"resuming from {resume}: {', '.join(archive.unpack(resume, work)) or 'nothing new'}", flush=True)
        return run(options, work, target)
    except KvregError as error:
        print(f"ci/gpu: {error.message}", file=sys.stderr)
        return error.exit_code
