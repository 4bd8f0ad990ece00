"""The command: `python -m kvreg.validation.robust --device cuda [--only NAME] [--json]`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from kvreg.core.errors import DeviceUnavailable, GateFailed, KvregError, wrong
from kvreg.validation.robust import suite
from kvreg.validation.robust.findings import Finding
from kvreg.validation.unproven import Place, place_of
from kvreg_tuning.pool import run_all

SCHEMA = 1


def checks(
    place: Place, names: Sequence[str], seconds: float, workers: int, say: Callable[[str], None]
) -> Iterator[tuple[str, Finding]]:
    """Run the named checks and yield each with its name as soon as it has ended."""
    tasks = suite.tasks(place, names)
    environment = {"TRITON_INTERPRET": "1" if place.interpreted else "0"}
    for index, outcome in run_all(tasks, workers=workers, environment=environment):
        if outcome.device_lost:
            raise DeviceUnavailable(
                wrong(
                    f"device {place.name}",
                    required="an answer",
                    found=outcome.error,
                    remedy="reset the card and try again",
                )
            )
        yield suite.title(tasks[index]), suite.found(outcome)
    for name, check in suite.OWN_WORKERS.items():
        if name in names:
            yield name, check.run(place)
    if suite.FUZZ in names:
        yield suite.FUZZ, suite.fuzzed(place, seconds, workers, say)[0]


@click.command(
    help="Try what kernels must survive: far offsets, graphs, streams, odd inputs, wrong calls, hazards, tuning."
)
@click.option("--device", default="cuda", show_default=True, help="A torch device, cpu, or interpreter.")
@click.option("--only", multiple=True, help=f"Only this check: {', '.join(suite.NAMES)}; may be repeated.")
@click.option("--fuzz-seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="For `fuzz`.")
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, progress on stderr.")
def main(device: str, only: tuple[str, ...], fuzz_seconds: float, workers: int, as_json: bool) -> None:
    """Run, print a line a check; exit 5 where one failed."""
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    say: Callable[[str], None] = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    document: dict[str, Any] = {"schema": SCHEMA, "device": device, "checks": rows}
    code = 0
    try:
        suite.require_names(only)
        for name, finding in checks(place_of(device), only or suite.NAMES, fuzz_seconds, workers, say):
            rows.append({"check": name, **finding.to_json()})
            say(f"{finding.status:8}{name}: {finding.detail}")
            for text in finding.failures:
                say(f"        {text}")
        _require_none_failed(rows, device)
    except KvregError as error:
        document["error"] = {"code": error.code, "message": error.message}
        code = error.exit_code
        print(error.message, file=sys.stderr)
    if as_json:
        print(json.dumps({**document, "seconds": round(time.monotonic() - begun, 1)}, indent=1))
    sys.exit(code)


def _require_none_failed(rows: Sequence[dict[str, Any]], device: str) -> None:
    failed = [row["check"] for row in rows if row["status"] == "failed"]
    if failed:
        again = f"python -m kvreg.validation.robust --device {device} --only {failed[0].split()[0]}"
        raise GateFailed(
            wrong("robust", required="no failed check", found=", ".join(failed), remedy=f"repeat one: {again}")
        )


if __name__ == "__main__":
    main()
