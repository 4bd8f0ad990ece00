"""Every command: exit codes, one line of error, one JSON document, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "object"]


def test_a_misspelt_command_is_a_usage_error_with_the_nearest(kvreg: Run) -> None:
    answer = kvreg("devcies")

    assert (answer.code, answer.out) == (2, "")
    assert (
        answer.err == "kvreg: command 'devcies' is unknown; did you mean devices?; `kvreg --help` lists the options\n"
    )


def test_a_usage_error_is_one_line_of_the_same_style(kvreg: Run) -> None:
    answer = kvreg("devices", "--jsno")

    assert answer.code == 2
    assert answer.err.startswith("kvreg: no such option")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("devcies", "--json"), ("devices", "--jsno", "--json"), ("--json",), ("devices", "a", "b", "--json")]
)
def test_a_usage_error_with_json_is_one_document(kvreg: Run, arguments: tuple[str, ...]) -> None:
    answer = kvreg(*arguments)

    assert (answer.code, answer.err) == (2, "")
    assert answer.document["schema"] == 1
    assert answer.document["error"]["code"] == "usage"


def test_help_lists_every_command_and_loads_none(kvreg: Run) -> None:
    answer = kvreg(
        "--help",
        before="import atexit; atexit.register(lambda: print([m for m in sys.modules if m.startswith('kvreg.cli.')]))",
    )

    assert answer.code == 0
    assert answer.out.splitlines()[-1] == "['kvreg.cli.once', 'kvreg.cli.output', 'kvreg.cli.main']"
    for name in ("select", "devices", "doctor", "validate", "evidence", "KVREG_BACKEND", "Exit codes"):
        assert name in answer.out


def test_no_command_shows_the_help_and_is_a_usage_error(kvreg: Run) -> None:
    answer = kvreg()

    assert (answer.code, answer.out) == (2, "")
    assert "Commands:" in answer.err


def test_a_misspelt_backend_ends_every_command_with_the_valid_list(kvreg: Run) -> None:
    answer = kvreg("devices", environment={"KVREG_BACKEND": "trition"})

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "kvreg: KVREG_BACKEND: required one of torch, triton, found trition; did you mean triton?\n"


def test_a_misspelt_backend_with_json_gives_the_candidates(kvreg: Run) -> None:
    answer = kvreg("devices", "--json", environment={"KVREG_BACKEND": "trition"})

    assert answer.code == 2
    assert answer.document["error"]["code"] == "bad_environment"
    assert answer.document["error"]["candidates"] == ["triton"]


def test_a_retired_or_unknown_variable_warns_and_the_answer_is_the_same(kvreg: Run) -> None:
    plain = kvreg("devices", "--json")
    answer = kvreg("devices", "--json", environment={"KVREG_FAMILY": "torch", "KVREG_DEVCIE": "h200"})

    assert (answer.code, answer.out) == (0, plain.out)
    assert answer.err.splitlines() == [
        "kvreg: warning: KVREG_DEVCIE is no variable of kvreg and is not read; did you mean KVREG_DEVICE?",
        "kvreg: warning: KVREG_FAMILY is not read; use KVREG_BACKEND (variant family to insist on)",
    ]


BROKEN = """
import types, click
broken = types.ModuleType("kvreg.cli.devices")
@click.command()
@click.option("--json", is_flag=True)
def devices(json):
    raise ZeroDivisionError("two\\nlines")
broken.devices = devices
sys.modules["kvreg.cli.devices"] = broken
"""


def test_garbage_is_collected_once_a_command_is_loaded(kvreg: Run) -> None:
    looked = BROKEN.replace('raise ZeroDivisionError("two\\nlines")', "import gc; print(gc.isenabled())")

    assert kvreg("devices", before=looked).out == "True\n"


def test_an_unexpected_error_is_one_line_that_names_the_way_to_the_traceback(kvreg: Run) -> None:
    answer = kvreg("devices", before=BROKEN)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "kvreg: ZeroDivisionError: two lines; KVREG_LOG=debug shows where\n"


def test_an_unexpected_error_with_json_is_a_document(kvreg: Run) -> None:
    answer = kvreg("devices", "--json", before=BROKEN)

    assert (answer.code, answer.err) == (1, "")
    assert answer.document["error"]["code"] == "internal"


def test_debug_shows_the_traceback(kvreg: Run) -> None:
    answer = kvreg("devices", before=BROKEN, environment={"KVREG_LOG": "debug"})

    assert "Traceback" in answer.err
    assert answer.code == 1


def test_an_interrupted_command_says_so_and_ends_as_shells_expect(kvreg: Run) -> None:
    answer = kvreg("devices", before=BROKEN.replace('ZeroDivisionError("two\\nlines")', "KeyboardInterrupt"))

    assert (answer.code, answer.err.strip().splitlines()[-1]) == (130, "kvreg: interrupted")


@pytest.mark.parametrize("repeats", [1, 100])  # with and without more output than a pipe holds
def test_a_reader_that_leaves_early_gets_no_verdict_and_no_complaint(repeats: int) -> None:
    code = (
        f"import json; dumps = json.dumps; json.dumps = lambda *a, **k: dumps(*a, **k) * {repeats}\n"
        "from kvreg.cli.main import run; run(['devices', '--json'])"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    if repeats > 1:
        os.read(reader, 1)
    os.close(reader)  # a short answer finds the reader gone from the start, or the race would be with its last byte
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full"])
def test_a_stream_that_takes_nothing_is_no_traceback(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from kvreg.cli.main import run; run()' devices no-such-card --json {closed}"

    found = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )

    assert found.returncode in (1, 2)
    assert "Traceback" not in found.stderr
    if closed == "2>&-":
        assert json.loads(found.stdout)["error"]["code"] == "unknown_device"


@pytest.mark.parametrize("full", ["2>/dev/full", "2> >(exec true)"], ids=["disk", "pipe"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("select --device bogus --head-size 96", 2),
        ("select --device mi300x --head-size 100", 3),
        ("devices --jsno", 2),
        ("devices h200", 0),
        ("", 2),
    ],
    ids=["error", "refusal", "usage", "done", "help"],
)
def test_a_stderr_that_takes_nothing_changes_no_exit_code(words: str, code: int, full: str, tmp_path: Path) -> None:
    # A variable that is warned of, so that every command has something to say there.
    command = f"sleep 0.1; {sys.executable} -c 'from kvreg.cli.main import run; run()' {words}"
    variables = {**os.environ, "KVREG_HOME": str(tmp_path), "KVREG_WARNED": "1"}

    found = subprocess.run(["bash", "-c", f"({command}) {full}"], capture_output=True, timeout=60, env=variables)

    assert found.returncode == code
    assert (found.stdout == b"") == (code == 2)


def test_a_choice_that_is_missing_is_one_plain_line(kvreg: Run) -> None:
    answer = kvreg("deselections", "export", "--file", "ok.yaml")

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kvreg: missing option '--format'. Choose from: arguments, intel, pytorch, ")
    assert answer.err.count("\n") == 1


def test_a_shell_can_complete_commands(kvreg: Run) -> None:
    environment = {"_KVREG_COMPLETE": "bash_complete", "COMP_WORDS": "kvreg dev", "COMP_CWORD": "1"}

    assert kvreg(environment=environment).out == "plain,devices\n"


def test_help_of_a_command_is_no_error(kvreg: Run) -> None:
    answer = kvreg("devices", "--help")

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Usage: kvreg devices [OPTIONS] [KEY]")


def test_a_name_outside_the_terminal_s_encoding_is_no_crash(kvreg: Run) -> None:
    answer = kvreg("devices", "h200\u00fc", environment={"PYTHONIOENCODING": "ascii"})

    assert answer.code == 2
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("arguments", [("devices",), ("--help",)])
def test_a_disk_that_is_full_is_one_line_and_no_defect(arguments: tuple[str, ...]) -> None:
    code = f"from kvreg.cli.main import run; run({list(arguments)!r})"

    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )

    assert found.returncode == 2
    assert found.stderr == (
        "kvreg: standard output: required to take the answer, found No space left on device;"
        " free some space, or send the answer elsewhere\n"
    )


@pytest.mark.parametrize("number", ["ENOSPC", "EACCES", "EROFS"])
def test_a_file_that_cannot_be_written_is_one_line_and_no_defect(kvreg: Run, number: str) -> None:
    raised = f'OSError(__import__("errno").{number}, "no such luck", "/elsewhere/file")'
    answer = kvreg("devices", before=BROKEN.replace('ZeroDivisionError("two\\nlines")', raised))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kvreg: /elsewhere/file: required to be read or written, found no such luck; ")


@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_a_home_that_nobody_may_read_is_exit_2_and_one_line(tmp_path: Path, json_too: tuple[str, ...]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    arguments = ["select", "--device", "h200", "--head-size", "96", *json_too]
    # Root may read everything, so the process gives that up; what it imports then must be anybody's to read.
    code = (
        "import os, stat\nfrom kvreg.cli.main import run\n"
        "import kvreg.cli.select, kvreg.core.registry\nkvreg.core.registry.backends()\n"
        "os.geteuid() or os.seteuid(65534)\nrun(" + repr(arguments) + ")"
    )
    locked.chmod(0)
    try:
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "KVREG_HOME": str(locked / "home")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        locked.chmod(0o700)

    assert found.returncode == 2
    said = json.loads(found.stdout)["error"]["message"] if json_too else found.stderr
    assert f"KVREG_HOME: required a folder, found {locked / 'home'} (Permission denied)" in said
    assert found.stderr.count("\n") == (0 if json_too else 1)


@pytest.mark.parametrize(
    "arguments",
    [("coverage", "--platform", "zzz"), ("deselections", "--platform", "zzz"), ("toolchain", "install", "zzz")],
    ids=" ".join,
)
def test_a_list_of_valid_words_is_said_once(here: Run, arguments: tuple[str, ...]) -> None:
    answer = here(*arguments)

    assert answer.code == 2
    assert answer.err.endswith("; take one of these\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("select", "--device", "h200", "--head-size", "96", "--mode", "none", "--mode", "int4_per_token_head"),
        ("select", "--device", "h200", "--device", "cpu", "--head-size", "96"),
        ("evidence", "list", "--mode", "none", "--mode=none"),
        ("validate", "--device", "cpu", "--device", "cpu"),
    ],
)
def test_an_option_of_one_value_that_comes_twice_is_a_usage_error(here: Run, arguments: tuple[str, ...]) -> None:
    answer = here(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert ": required once, found 2 times; name one value; `kvreg" in answer.err


def test_every_command_refuses_an_option_that_comes_twice() -> None:
    from kvreg.cli.main import COMMANDS, cli
    from kvreg.cli.once import Command, Group

    for name in COMMANDS:
        command = cli.get_command(None, name)
        inner = command.commands.values() if isinstance(command, Group) else ()
        assert all(isinstance(each, Command | Group) for each in (command, *inner)), name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tune", "--device", "h200", "report"), "--device goes behind report"),
        (("tune", "--json", "report"), "--json goes behind report"),
        (("tune", "--head-size", "7", "--mode", "bogus", "report"), "--head-size goes behind report"),
        (("tune", "--mode", "none", "report"), "--mode: required behind no subcommand, found report"),
        (("tune", "--device", "h200", "regret", "none.gz"), "--device: required behind no subcommand, found regret"),
        (("deselections", "--file", "x", "show", "A"), "--file goes behind show"),
        (("deselections", "--json", "show", "A"), "--json goes behind show"),
        (("deselections", "--as-of", "2026-11-30", "check"), "--as-of goes behind check"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_option_before_a_subcommand_is_an_error_and_not_ignored(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    from kvreg.cli.main import status

    assert status(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert said in (json.loads(out)["error"]["message"] if "--json" in arguments else err)
    assert err.count("\n") == (0 if "--json" in arguments else 1)


HOSTILE = "h200\x1b[31m\u202e\x07"


@pytest.mark.parametrize(
    "arguments",
    [
        ("devices", HOSTILE),
        ("devices", f"h200/mig-{HOSTILE}"),
        ("select", "--head-size", "96", "--device", HOSTILE),
        ("select", "--head-size", "96", "--device", "h200", "--mode", HOSTILE),
        ("select", "--device", "h200", "--model", HOSTILE),
        ("evidence", "show", HOSTILE),
        ("validate", "--variant", HOSTILE),
        (f"--{HOSTILE}",),
        (HOSTILE,),
    ],
)
def test_what_a_terminal_would_obey_is_printed_escaped(here: Run, arguments: tuple[str, ...]) -> None:
    answer = here(*arguments)

    assert answer.code == 2
    assert "\\x1b[31m\\u202e\\x07" in answer.err
    assert (answer.out + answer.err).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("select --device h200 --head-size 96", 2, "KVREG_HOME: required a folder, found home, from a current folder"),
        ("tuned list", 2, "KVREG_HOME: required a folder, found home, from a current folder"),
        ("doctor", 4, "missing: KVREG_HOME: required a folder, found home, from a current folder"),
        ("doctor --json", 4, "found home, from a current folder"),
    ],
)
def test_a_relative_home_in_a_folder_that_is_gone_is_named(words: str, code: int, told: str, tmp_path: Path) -> None:
    found = _in_a_folder_that_is_gone(words, tmp_path, KVREG_HOME="home")

    assert found.returncode == code
    assert (found.stderr if code == 2 else found.stdout).count(told) == 1
    # Of doctor in a checkout the warning that no index can be kept; a wheel has one.
    assert found.stderr.count("\n") == 1 or (found.stderr, code) == ("", 4)


@pytest.mark.parametrize("words", ["ci matrix", "toolchain install xpu --folder rel", "deselections unskip"])
def test_a_command_that_needs_the_current_folder_says_that_it_is_gone(words: str, tmp_path: Path) -> None:
    found = _in_a_folder_that_is_gone(words, tmp_path, KVREG_HOME=str(tmp_path / "home"))

    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "kvreg: current folder: required one that is there, found none; change to another\n"


def _in_a_folder_that_is_gone(words: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "gone").mkdir()
    # -P: the folder that a script of -c would be looked for in is the one that is gone.
    command = f"cd gone; rmdir ../gone; {sys.executable} -P -c 'from kvreg.cli.main import run; run()' {words}"
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
