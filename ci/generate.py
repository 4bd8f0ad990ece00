"""Writes what is generated in the repository: pages, the outputs that README.md shows, a schema, the tests' own ids.

    python ci/generate.py [--check] [NAME ...]        NAME: one of PAGES; all of them when none is named

`--check` writes nothing, prints what differs and ends with 4. The tree is what runs, whatever is installed; commands
that README shows are run as they stand there.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- output of: (?P<command>kvreg [^\n]*?) -->\n```\n).*?(```\n<!-- end -->)", re.DOTALL)
TREE = os.pathsep.join(str(ROOT / name) for name in ("", "backends", "tuning"))
KVREG = (sys.executable, "-c", "from kvreg.cli.main import run; run()")
FINDING = 4


def module(name: str, *arguments: str) -> Callable[[Path], str]:
    """Return the maker of a page that a module prints."""

    def make(_: Path) -> str:
        return run([sys.executable, "-m", name, *arguments])

    return make


def readme(path: Path) -> str:
    """Return a page with the real output of each command that it shows."""

    def replaced(match: re.Match[str]) -> str:
        arguments = match["command"].split()[1:]
        return match[1] + run([*KVREG, *arguments]) + match[3]

    return BLOCK.sub(replaced, path.read_text(encoding="utf-8"))


def ids_of_tests(_: Path) -> str:
    """Return the ids of kvreg's own tests, sorted; made in ci/test's environment, since a lesser one collects less."""
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    lines = run([*collect, "-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests")]).splitlines()
    return "".join(f"{line}\n" for line in sorted(line for line in lines if "::" in line))


def matrix(form: str) -> Callable[[Path], str]:
    """Return the maker of the jobs of ci/runners.yaml in one format, laid out for people who read a diff."""

    def make(_: Path) -> str:
        made = run([*KVREG, "ci", "matrix", "--format", form])
        return json.dumps(json.loads(made), indent=1) + "\n"

    return make


def run(command: list[str]) -> str:
    """Return what a command prints; a refusal (exit 3) is an answer too."""
    with tempfile.TemporaryDirectory() as home:
        # What the caller has validated, or named by KVREG_DEVICE, is nobody else's answer.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
        variables = {**inherited, "KVREG_HOME": home, "PYTHONPATH": TREE}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


PAGES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "coverage": ("docs/coverage.md", module("kvreg.cli.coverage_pages", "markdown")),
    "coverage-html": ("docs/coverage.html", module("kvreg.cli.coverage_pages", "html")),
    "compiled": ("docs/compiled.md", module("kvreg.cli.compiled_page")),
    "xpu": ("docs/xpu.md", module("kvreg_xpu.page")),
    "h200-figures": ("docs/h200-figures.md", module("kvreg.validation.figures_page")),
    "cli": ("docs/cli.md", module("kvreg.cli.reference")),
    "gate-mutants": ("docs/gate-mutants.md", module("kvreg.gate.mutants")),
    "readme": ("README.md", readme),
    "expectations-schema": ("ci/expectations.schema.json", module("kvreg.core.expectations.schema")),
    "runners-schema": ("ci/runners.schema.json", module("kvreg.ci.matrix.schema")),
    "ci-matrix": ("ci/matrix.json", matrix("github")),
    "ci-pipeline": ("ci/matrix.buildkite.json", matrix("buildkite")),
    "ci-matrix-page": ("docs/ci-matrix.md", readme),
    "test-ids": ("ci/test-ids.txt", ids_of_tests),
}


def main() -> int:
    """Write or check the named pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PAGES))
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in PAGES]
    if unknown:
        parser.error(f"required some of {', '.join(PAGES)}, found {', '.join(unknown)}")
    differing = 0
    for name in asked.names or PAGES:
        file, make = PAGES[name]
        path = ROOT / file
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        made = make(path)
        if made == there:
            continue
        differing += 1
        if asked.check:
            sys.stdout.writelines(
                difflib.unified_diff(there.splitlines(True), made.splitlines(True), file, "generated")
            )
        else:
            path.write_text(made, encoding="utf-8")
            print(f"wrote {file}")
    if asked.check and differing:
        print(f"{differing} differ; run: python ci/generate.py {' '.join(asked.names)}".rstrip())
        return FINDING
    return 0


if __name__ == "__main__":
    sys.exit(main())
