"""README and docs: the commands are those that work, outputs are real, the program runs, the links lead somewhere."""

from __future__ import annotations

import os
import re
import sys

import pytest

pytestmark = pytest.mark.checkout

FIRST = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/kvreg select --device h200 --head-size 96"


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def tree(root):
    return os.pathsep.join(str(root / name) for name in ("", "backends", "tuning"))


def test_the_two_commands_are_one_line_each(readme):
    assert [block.strip() for block in blocks(readme, "sh")] == [FIRST, "ci/test"]


def test_continuous_integration_runs_the_second_command_and_nothing_else(root):
    lines = (root / ".ci" / "run").read_text().splitlines()

    assert lines[0].startswith("#!")
    assert lines[1:] == ['exec "$(dirname "$0")/../ci/test" "$@"']
    assert all(os.access(root / path, os.X_OK) for path in (".ci/run", "ci/test"))


@pytest.mark.parametrize("name", ["cli", "readme", "ci-matrix", "ci-pipeline", "ci-matrix-page"])
def test_what_is_generated_is_current(name, root, process):
    """docs/gate-mutants.md has a test beside the gate's own."""
    done = process([sys.executable, str(root / "ci" / "generate.py"), "--check", name], codes=(0, 4))

    assert done.returncode == 0, done.stdout


def test_a_page_that_differs_is_a_finding_and_is_named(root, process, copy_tree, tmp_path):
    source = copy_tree(tmp_path / "source")
    (source / "ci" / "generate.py").write_text((root / "ci" / "generate.py").read_text())
    page = source / "docs" / "cli.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text((root / "docs" / "cli.md").read_text().replace("| `--budget TEXT` |", "| `--limit TEXT` |"))

    done = process([sys.executable, str(source / "ci" / "generate.py"), "--check", "cli"], codes=(4,))

    assert "`--budget TEXT`" in done.stdout
    assert done.stdout.endswith("1 differ; run: python ci/generate.py cli\n")
    process([sys.executable, str(source / "ci" / "generate.py"), "cli"])
    assert page.read_text() == (root / "docs" / "cli.md").read_text()


def test_the_program_runs_on_a_machine_without_a_card(readme, root, process, tmp_path):
    pytest.importorskip("torch")
    (program,) = blocks(readme, "python")
    home = {"PYTHONPATH": tree(root), "KVREG_HOME": str(tmp_path / "home")}

    done = process([sys.executable, "-c", program], cwd=tmp_path, environment=home)

    assert done.stdout == "(2, 8, 96) torch.bfloat16\n"
    assert done.stderr == ""


def test_every_link_leads_to_a_file(root):
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_of_the_docs_names_every_page(root):
    index = (root / "docs" / "index.md").read_text()

    for page in (root / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_the_page_of_exit_codes_has_every_error_with_its_code(root):
    from kvreg.core import errors

    page = (root / "docs" / "exit-codes.md").read_text()
    rows = {int(code): row for code, row in re.findall(r"^\| (\d+) \|(.*)$", page, re.MULTILINE)}
    # The errors of one wrong call share a line with their base.
    named = [
        each for each in vars(errors).values() if isinstance(each, type) and each.__base__ is not errors.CallError
    ]

    for error in named:
        if issubclass(error, errors.KvregError) and error is not errors.KvregError:
            assert f"`{error.__name__}`" in rows[error.exit_code], error


def test_the_page_of_variables_has_every_variable(root):
    from kvreg.core.environment import VARIABLES

    page = (root / "docs" / "exit-codes.md").read_text()

    assert set(re.findall(r"^\| `(KVREG_\w+)`", page, re.MULTILINE)) == set(VARIABLES)


def test_the_page_of_concepts_gives_each_modes_bytes_as_the_code_does(root):
    from kvreg.core.modes import Mode

    page = (root / "docs" / "concepts.md").read_text()
    shown = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+ \| \d+) bytes \|$", page, re.MULTILINE))

    assert shown == {mode: f"{mode.row_bytes(96)} | {mode.bytes_per_token_head(96)}" for mode in Mode}


def test_the_layouts_are_drawn_as_in_the_code(root):
    from kvreg.core import layouts

    page = (root / "docs" / "layouts.md").read_text()
    lines = [line.split("(no ")[0].strip() for line in (layouts.__doc__ or "").splitlines()]
    drawn = [line for line in lines if line.startswith(("|", "0 "))]

    assert len(drawn) == 3
    for line in drawn:
        assert line in page
