"""Running the stages of `ci/gpu`.

They run in their order, each in a try of its own; what is finished lies in the archive after every stage, and a call
that is given an earlier archive goes on behind it. Without a card `--interpreter --smoke` or `--device cpu --smoke`
tries the same path at tiny sizes.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from kvreg.core import environment
from kvreg.core.errors import DeviceUnavailable, KvregError
from kvreg.validation import archive
from kvreg.validation import machine as machines
from kvreg.validation.gpu.asked import Options
from kvreg.validation.gpu.options import default_work, parse, require_writable
from kvreg.validation.gpu.rig import Rig, require_possible, require_work
from kvreg.validation.gpu.session import CUT_OFF, EXIT, FAILED, LOST, OK, SKIPPED, Session
from kvreg.validation.gpu.stages import STAGES
from kvreg.validation.journal import Journal
from kvreg.validation.machine import Machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every deliberate error is one line and its exit code."""
    try:
        options, work, target, resume = parse(sys.argv[1:] if arguments is None else arguments)
        require_possible(options)
        default = environment.read().device
        machine = machines.machine_for(options.device, interpreter=options.interpreter, default=default)
        require_work(options, machine)
        work = work or default_work(machine.device)
        require_writable("--out", target.parent)
        require_writable("--work", work)
        if resume is not None:
            print(f"resuming from {resume}: {', '.join(archive.unpack(resume, work)) or 'nothing new'}", flush=True)
        return run(options, machine, work, target)
    except KvregError as error:
        print(f"ci/gpu: {error.message}", file=sys.stderr)
        return error.exit_code


def run(options: Options, machine: Machine, work: Path, target: Path) -> int:
    """Run the stages asked for; returns the exit code."""
    session = Session(options, work, target)
    with Journal(work / "journal.jsonl") as journal:
        rig = Rig(session, machine, journal)
        status = OK
        for name in STAGES:
            status = max(status, _stage(rig, name, status), key=lambda each: EXIT[each])
            session.save()
    session.note("stages: " + ", ".join(f"{each['name']} {each['status']}" for each in session.stages))
    print(f"{target}", flush=True)
    return EXIT[status]


def _stage(rig: Rig, name: str, so_far: str) -> str:
    """Run one stage in a try of its own and write down what became of it."""
    session, asked_for = rig.session, name in rig.options.stages
    begun = time.monotonic()
    status, detail = OK, ""
    if not asked_for and name != "probe":
        status, detail = SKIPPED, "not asked for"
    elif so_far == LOST and name != "traces":
        status, detail = SKIPPED, "the device is lost"
    elif rig.left_s() <= 0 and name != "traces":
        status, detail = CUT_OFF, "no time left"
    else:
        try:
            status, detail = _call(rig, name)
        except DeviceUnavailable as error:
            status, detail = LOST, error.message
        except KvregError as error:
            status, detail = FAILED, error.message
        except Exception as error:
            status, detail = FAILED, f"{type(error).__name__}: {error}"
            session.note(traceback.format_exc())
    seconds = round(time.monotonic() - begun, 1)
    session.stages.append({"name": name, "status": status, "seconds": seconds, "detail": detail})
    if status != SKIPPED or asked_for:
        session.note(f"stage {name}: {status}{': ' + detail if detail else ''} ({seconds} s)")
    return status


def _call(rig: Rig, name: str) -> tuple[str, str]:
    rig.run.cut_off = False
    status, detail = STAGES[name](rig)
    return (CUT_OFF, detail) if status == OK and rig.run.cut_off else (status, detail)
