"""Random calls on a card for some minutes: `python -m kvreg.validation.fuzz --minutes 5 --device cuda`.

Workers judge families of cases (kvreg.validation.fuzz_cases), each in a process that may be killed, so that a kernel
that hangs or takes the card's context with it is one typed failure. Every failure names the command that repeats it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from kvreg.core.errors import DeviceUnavailable, GateFailed, KvregError, UsageError, wrong
from kvreg.core.modes import Mode
from kvreg.validation.fuzz_cases import FAMILY, Case
from kvreg.validation.unproven import offered, place_of
from kvreg_tuning.pool import Task, run_all

FAMILY_TIMEOUT_S = 300.0
"""For compiling and judging one family; a slow compiler takes a minute."""

JUDGE = "kvreg.validation.fuzz_judge:judge_numbers"

MOST_FAILURES = 50
"""Failures after which a run ends: a kernel that is wrong everywhere needs no more of them."""


@dataclass(slots=True)
class Tally:
    """What became of the cases so far."""

    first: int
    modes: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    """Cases whose selection had the variant, by its id."""
    worst: dict[str, float] = field(default_factory=dict)
    """Largest e of each mode's attention."""
    failures: int = 0
    finished: dict[int, int] = field(default_factory=dict)
    """First case and number of cases of each family that is done."""

    def add(self, judged: Mapping[str, Any]) -> None:
        """Count a case as `fuzz_judge.judge_numbers` describes it; its failures are counted where they are shown."""
        mode, worst = judged["case"]["mode"], judged["worst"]
        self.modes[mode] += 1
        self.variants.update(judged["variants"])
        if worst is not None:
            self.worst[mode] = max(self.worst.get(mode, 0.0), worst)

    def summary(self) -> str:
        """Return the numbers in one line: cases, the worst e of each mode, how often each variant was drawn."""
        cases = sum(self.modes.values())
        worst = ", ".join(f"{mode} {self.modes[mode]} (e {e:.2e})" for mode, e in sorted(self.worst.items()))
        drawn = ", ".join(f"{name} {count}" for name, count in sorted(self.variants.items()))
        return f"{cases} cases, {self.failures} failed; {worst or 'none judged'}; variants drawn: {drawn or 'none'}"

    @property
    def following(self) -> int:
        """The lowest case that was not judged: where a later run goes on."""
        number = self.first
        while number in self.finished:
            number += self.finished[number]
        return number


def _tasks(device: str, seed: int, start: int, count: int | None, modes: Sequence[str]) -> list[Task]:
    """Return one task a family; without a `count` more of them than any run will get to."""
    end = start + (FAMILY * 100_000 if count is None else count)
    tasks, first = [], start
    while first < end:
        after = min(end, first - first % FAMILY + FAMILY)
        arguments = {"place": device, "seed": seed, "first": first, "count": after - first, "modes": list(modes)}
        tasks.append(Task(JUDGE, arguments, FAMILY_TIMEOUT_S))
        first = after
    return tasks


def _print(text: str) -> None:
    print(text, flush=True)


def run(
    *,
    device: str,
    minutes: float | None,
    seed: int = 0,
    start: int = 0,
    cases: int | None = None,
    modes: Sequence[str] = (),
    workers: int = 1,
    say: Callable[[str], None] = _print,
) -> Tally:
    """Judge drawn cases until the time is up or `cases` are done; says each failure as it is found.

    `modes`: by default all that the device has variants for.

    A family that is cut off by the end of the time is not counted, and a later run with `start` does it again.
    """
    tally = Tally(start)
    place = place_of(device)  # no card is one error here, and not one of every family
    modes = modes or offered(place)
    tasks = _tasks(device, seed, start, cases, modes)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    # Each worker judges on the host too; its threads must not crowd the others out.
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    environment |= {"TRITON_INTERPRET": "1"} if device == "interpreter" else {}
    if place.is_card:  # a driver that many processes ask at once may answer too late
        environment["KVREG_DEVICE"] = place.resolution.device.key
    outcomes = _before(until, run_all(tasks, workers=workers, environment=environment))
    for index, outcome in outcomes:
        task = tasks[index].arguments
        if outcome.device_lost:
            raise DeviceUnavailable(
                wrong(
                    f"device {device}",
                    required="an answer",
                    found=outcome.error,
                    remedy=f"reset the card, then {_again(task, task['first'], task['count'])}",
                )
            )
        if outcome.status != "ok":
            tally.failures += 1
            text = f"{outcome.status}: required an answer, found {outcome.error}"
            say(f"FAILED {text}; repeat it: {_again(task, task['first'], task['count'])}")
        for judged in outcome.value or ():
            tally.add(judged)
            if judged["failures"]:
                tally.failures += 1
                for text in judged["failures"]:
                    say(f"FAILED {text}")
                say(f"       case {Case.of(judged['case']).to_text()}")
                say(f"       repeat it: {_again(task, judged['number'], 1)}")
        tally.finished[int(task["first"])] = int(task["count"])
        if tally.failures >= MOST_FAILURES:
            say(f"stopped after {tally.failures} failures")
            break
    return tally


def _before(until: float | None, outcomes: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Yield outcomes until the time is up; the one that is there by then still counts."""
    try:
        for outcome in outcomes:
            yield outcome
            if until is not None and time.monotonic() >= until:
                return
    finally:
        outcomes.close()  # kills the workers


def _again(task: Any, first: int, count: int) -> str:
    chosen = "" if len(task["modes"]) == len(Mode) else "".join(f" --mode {mode}" for mode in task["modes"])
    return (
        f"python -m kvreg.validation.fuzz --device {task['place']} --seed {task['seed']} "
        f"--start {first} --cases {count}{chosen}"
    )


@click.command(help=__doc__)
@click.option("--device", default="cuda", show_default=True, help="A torch device, cpu, or interpreter.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Stop after this time.")
@click.option("--cases", type=click.IntRange(min=1), help="Stop after as many cases.")
@click.option("--seed", type=int, default=0, show_default=True, help="What all cases follow from.")
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="The first case.")
@click.option("--mode", "modes", type=click.Choice([str(mode) for mode in Mode]), multiple=True, help="Only these.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; by default half of the processors.")
def main(
    device: str,
    minutes: float | None,
    cases: int | None,
    seed: int,
    start: int,
    modes: tuple[str, ...],
    workers: int | None,
) -> None:
    """Run, print how many cases were judged and where to go on; exit 5 where one failed."""
    try:
        if minutes is None and cases is None:
            raise UsageError(wrong("fuzz", required="an end", found="none", remedy="pass --minutes N or --cases N"))
        began = time.monotonic()
        tally = run(
            device=device,
            minutes=minutes,
            seed=seed,
            start=start,
            cases=cases,
            modes=modes,
            workers=workers or max(1, (os.cpu_count() or 2) // 2),
        )
        total = sum(tally.modes.values())
        by_mode = ", ".join(f"{mode} {count}" for mode, count in sorted(tally.modes.items())) or "none"
        print(f"{total} cases on {device} in {time.monotonic() - began:.0f} s ({by_mode}), {tally.failures} failed")
        print("worst e: " + (", ".join(f"{mode} {e:.2e}" for mode, e in sorted(tally.worst.items())) or "none"))
        print("variants: " + (", ".join(f"{name} {n}" for name, n in sorted(tally.variants.items())) or "none"))
        print(f"go on: --seed {seed} --start {tally.following}")
        if tally.failures:
            raise GateFailed(
                wrong("fuzz", required="no failure", found=tally.failures, remedy="repeat one by its command above")
            )
    except KvregError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
