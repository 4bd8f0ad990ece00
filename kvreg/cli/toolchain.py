"""`kvreg toolchain`: the compilers that stand in for cards that are not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvreg.cli import render
from kvreg.cli.input_file import NamedPath
from kvreg.cli.once import Group
from kvreg.core import environment, environments, notices
from kvreg.core.errors import Finding, UsageError, wrong
from kvreg.core.near import choice, suggestion

if TYPE_CHECKING:
    from kvreg.core.environments import Environment, Recipe
    from kvreg.validation.compilers import Compilable


@click.group(cls=Group)
def toolchain() -> None:
    """Install and check the compilers that stand in for cards that are not there."""


@toolchain.command()
@click.argument("name")
@click.option("--folder", type=NamedPath(file_okay=False, path_type=Path), help="Where. Default: below KVREG_HOME.")
@click.option("--python", type=NamedPath(dir_okay=False, path_type=Path), help="The Python that makes it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def install(name: str, folder: Path | None, python: Path | None, as_json: bool) -> int:
    """Install a compiler into an environment of its own: xpu is Intel's Triton, 182 MB.

    An installation that was cut off is seen and made anew. Nothing outside of the folder is changed.
    """
    recipe = _recipe(name)
    from kvreg.validation import toolchain as making

    place = environments.place(environment.read().home, recipe.name)
    target = (folder or place).absolute()
    made = making.install(recipe, Path(os.path.realpath(target)), python, _say)
    if target != place:
        making.link(target, place)
    if as_json:
        render.document({"schema": 1, "name": recipe.name, "requirement": recipe.requirement, **_facts(made)})
    else:
        render.line(f"{recipe.requirement} in {made.folder}, made by Python {made.python} in {made.seconds:.0f} s")
        render.line("kvreg toolchain check --compile")
    return 0


@toolchain.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--compile", "really", is_flag=True, help="Compile a short kernel for each target: 2 s and more each.")
@click.option("--jobs", type=click.IntRange(1), help="Compilations at a time. Default: this machine's cores.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(targets: Sequence[str], really: bool, jobs: int | None, as_json: bool) -> int:
    """Say what can be told of each target on this machine, what is missing and how to get it.

    A TARGET is an arch (sm_90, gfx942, bmg), a platform (cuda, rocm, xpu) or ocloc; without one, all of them are shown
    and the answer is 0 whatever is missing. Ends with 4 when a target that is named, or that was compiled for, fails.
    """
    from kvreg.core.index import Index
    from kvreg.validation import compilers

    home = environment.read().home
    devices = Index.open(home).devices()
    found = _named(compilers.look(devices, home), targets)
    if really:
        order = {one.target: index for index, one in enumerate(found)}
        tried = compilers.tried(found, devices, home, jobs or os.cpu_count() or 1)
        found = sorted(tried, key=lambda one: order[one.target])
    if as_json:
        render.document({"schema": 1, "compiled": really, "targets": [asdict(one) for one in found]})
    else:
        _show(found)
    failing = {one.state for one in found} & ({"missing", "fails"} if targets else {"fails"})
    return Finding.exit_code if failing else 0


def _recipe(name: str) -> Recipe:
    from kvreg_xpu.toolchain import RECIPE

    known = {RECIPE.name: RECIPE}
    if name not in known:
        raise UsageError(
            wrong("toolchain", required=f"one of {', '.join(known)}", found=repr(name), remedy=choice(name, known)),
            candidates=tuple(known),
        )
    return known[name]


def _say(line: str) -> None:
    print(notices.one_line(line), file=sys.stderr, flush=True)


def _facts(made: Environment) -> dict[str, object]:
    return {"folder": str(made.folder), "python": made.python, "seconds": made.seconds}


def _named(found: Sequence[Compilable], targets: Sequence[str]) -> list[Compilable]:
    """Return the targets that the words name, all of them without a word."""
    known = {word for one in found for word in (one.target, one.platform)}
    for word in targets:
        if word not in known:
            remedy = suggestion(word, sorted(known))
            message = wrong("target", required="an arch, a platform or ocloc", found=repr(word), remedy=remedy)
            raise UsageError(message, candidates=sorted(known))
    return [one for one in found if not targets or one.target in targets or one.platform in targets]


def _show(found: Sequence[Compilable]) -> None:
    render.table(
        ("target", "platform", "compiler", "version", "state"),
        [(one.target, one.platform, one.compiler, one.version or "-", one.state) for one in found],
    )
    render.line()
    for reads in dict.fromkeys(one.reads for one in found if one.state == "ok"):
        of = ", ".join(dict.fromkeys(one.compiler for one in found if one.reads == reads))
        platforms = ", ".join(dict.fromkeys(one.platform for one in found if one.reads == reads))
        render.line(f"read of {platforms} by {of}: {reads}")
    problems: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.problem:
            problems.setdefault((one.problem, one.remedy or "-"), []).append(one.target)
    for (problem, remedy), targets in problems.items():
        render.line(f"{', '.join(targets)}: {notices.one_line(problem)}; {remedy}")
