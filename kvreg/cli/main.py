"""The `kvreg` command: its subcommands, loaded by name on use, and how every error ends.

A deliberate error is one line on stderr and its exit code; with --json it is one document on standard output. An
unexpected one is a line as well, and KVREG_LOG=debug adds the traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from kvreg.cli.once import Group
from kvreg.cli.output import Asides, Output, OutputLost
from kvreg.core import environment, notices
from kvreg.core.errors import BadFile, KvregError, wrong
from kvreg.core.near import suggestion

COMPLETION = "_KVREG_COMPLETE"
"""Set by shells that complete a line: `eval "$(_KVREG_COMPLETE=bash_source kvreg)"`."""

INTERRUPTED = 130
"""128 + SIGINT, as shells count it."""
READER_LEFT = 141
"""128 + SIGPIPE, as a shell reports a writer whose reader is gone."""

OF_THE_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
)
"""What a disk or a folder's rights bring about; any other OSError is a defect until somebody knows better."""


NOWHERE = wrong("current folder", required="one that is there", found="none", remedy="change to another")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a subcommand lies, and its line in the help: listing them loads none."""

    target: str
    summary: str


COMMANDS = {
    "select": Entry("kvreg.cli.select:select", "Choose the kernel variants for a device and head size, and say why."),
    "coverage": Entry("kvreg.cli.coverage:coverage", "Show what is measured, compiled or refused, device by device."),
    "devices": Entry("kvreg.cli.devices:devices", "List the devices, or show one with the sources of its facts."),
    "doctor": Entry("kvreg.cli.doctor:doctor", "Say what this machine has, what is missing and how to get it."),
    "validate": Entry("kvreg.cli.validate:validate", "Run the numerical gate and record the evidence."),
    "bench": Entry("kvreg.cli.bench:bench", "Time the kernels beside torch's, vLLM's and FlashInfer's."),
    "toolchain": Entry("kvreg.cli.toolchain:toolchain", "Install and check compilers for cards that are not there."),
    "tune": Entry("kvreg.cli.tune:tune", "Find the best launch parameters of a device, gate first."),
    "tuned": Entry("kvreg.cli.tuned:tuned", "List, show, check, compare and merge tuned launch parameters."),
    "evidence": Entry("kvreg.cli.evidence:evidence", "List, show and check the records of validations."),
    "deselections": Entry(
        "kvreg.cli.deselections:deselections", "Say which tests are off where and until when; check such lists."
    ),
    "ci": Entry("kvreg.cli.ci:ci", "Say which tests run on which machine, and which jobs a change needs."),
}


class LazyGroup(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None for a name that is not in the table."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if not gc.isenabled():  # `run` began, and what is loaded by now stays
            gc.freeze()
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of `args`; a misspelt one is a usage error with the nearest name."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"command {args[0]!r} is unknown; {suggestion(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the environment variables and exit codes, which hold for every command."""
        with formatter.section("Environment"):
            formatter.write_dl(list(environment.VARIABLES.items()))
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 done; 2 usage, unknown device or bad file; 3 refused; 4 a finding; 5 gate failed;"
                " 6 device lost or absent; 7 no improvement"
            )


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"kvreg {version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Map (device, KV-cache quantization mode, head size) to validated kernels, with the numbers behind them."""
    if ctx.invoked_subcommand != "doctor":  # which reports wrong variables and goes on
        environment.read()


def version() -> str:
    """Return the installed version, or say that kvreg runs from a source tree that is not installed."""
    from importlib import metadata  # 20 ms, for one option

    try:
        return metadata.version("kvreg")
    except metadata.PackageNotFoundError:
        return "(source tree, not installed)"


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    gc.disable()  # to look for garbage among modules that are being loaded is a twentieth of a short command
    if COMPLETION in os.environ:
        cli.main(prog_name="kvreg", complete_var=COMPLETION)
    sys.exit(status(sys.argv[1:] if arguments is None else arguments))


def status(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    as_json = "--json" in arguments
    # A closed stream is None, and `print(file=None)` would write to the other one.
    closed = sys.stdout is None
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")  # a name that the terminal cannot spell is no reason to fail
    below = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Output(sys.stdout, closed=closed), Asides(sys.stderr)
    try:
        return _ended(arguments, as_json)
    finally:
        sys.stdout, sys.stderr = below


def _ended(arguments: Sequence[str], as_json: bool) -> int:
    try:
        return _delivered(arguments)
    except BrokenPipeError:
        # The reader left (`kvreg devices | head`): no verdict was delivered.
        _give_up_stdout()
        return READER_LEFT
    except OutputLost as error:
        _give_up_stdout()
        print(f"kvreg: {error.message}", file=sys.stderr)
        return error.exit_code
    except KvregError as error:
        _report(error.code, error.message, error.candidates, as_json)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _report("usage", _usage(error), (), as_json)
        return 2
    except (click.Abort, KeyboardInterrupt):
        _report("interrupted", "interrupted", (), as_json)
        return INTERRUPTED
    except Exception as error:
        if notices.wanted("debug"):
            import traceback  # only when something is wrong

            print("\n".join(map(notices.printable, traceback.format_exc().splitlines())), file=sys.stderr)
        if isinstance(error, FileNotFoundError) and _stands_nowhere():
            _report(BadFile.code, NOWHERE, (), as_json)
            return BadFile.exit_code
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            _report(BadFile.code, _unusable(error), (), as_json)
            return BadFile.exit_code
        _report("internal", f"{type(error).__name__}: {error}; KVREG_LOG=debug shows where", (), as_json)
        return 1


def _delivered(arguments: Sequence[str]) -> int:
    try:
        # Not `cli.main`, which turns a broken pipe into exit 1 and leaves no trace of the cause.
        with cli.make_context("kvreg", list(arguments)) as context:
            result = cli.invoke(context)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as left:
        code = left.exit_code
    sys.stdout.flush()
    return code


def _unusable(error: OSError) -> str:
    """Return the line about a file or a stream that cannot be read or written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space" if full else "mend its rights or name another"
    subject = str(error.filename or "a file of KVREG_HOME")
    return wrong(subject, required="to be read or written", found=error.strerror, remedy=remedy)


def _stands_nowhere() -> bool:
    """Return whether the current folder is gone."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _give_up_stdout() -> None:
    """Let no later flush of standard output complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".").replace("\n\t", " ")  # click lists choices one below the other
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    return f"{message}; `{context.command_path} --help` lists the options" if context else message


def _report(code: str, message: str, candidates: Sequence[str], as_json: bool) -> None:
    try:
        _answer(code, message, candidates, as_json)
    except (OSError, OutputLost):
        # The line below is all that can be said. Some releases of Python hold back what was not taken and fail at the
        # end of the process.
        _give_up_stdout()
        print(f"kvreg: {notices.one_line(message)}", file=sys.stderr)


def _answer(code: str, message: str, candidates: Sequence[str], as_json: bool) -> None:
    if as_json:
        fault = {"code": code, "message": notices.one_line(message), "candidates": list(candidates)}
        print(json.dumps({"schema": 1, "error": fault}, indent=2), flush=True)
    else:
        print(f"kvreg: {notices.one_line(message)}", file=sys.stderr)
