"""Which jobs a change needs: by import, by folder, by what the file of runners says; and a reason for each other."""

from pathlib import Path

import pytest

from kvreg.ci.matrix.changes import Needs
from kvreg.ci.matrix.imports import Imports
from kvreg.ci.matrix.jobs import matrix
from kvreg.ci.matrix.runners import read
from kvreg.core import registry
from kvreg.core.backends import FolderBackend
from kvreg.core.expectations.known import Known

TREE = {
    "core/__init__.py": "",
    "app/__init__.py": "",
    "app/used.py": "def f():\n    from app.inner import deep\n",
    "app/inner/__init__.py": "",
    "app/inner/deep.py": "from .. import sibling\n",
    "app/sibling.py": "",
    "app/unused.py": "import app.used\n",
    "app/data.json": "{}",
    "backends/toy_backend/__init__.py": "",
    "backends/toy_backend/devices.yaml": "",
    "backends/other_backend/__init__.py": "",
    "backends/other_backend/part.py": "",
    "tests/conftest.py": "",
    "tests/card/conftest.py": "",
    "tests/card/test_a.py": "from app import used\n",
    "tests/elsewhere/test_b.py": "import app.unused\n",
    "tests/elsewhere/conftest.py": "",
    "tests/test_all.py": "",
    "docs/page.md": "",
}


@pytest.fixture
def chosen(workshop, written):
    """Return job id -> (picked, why) for changed files."""
    path = written()
    root = path.parent.parent
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    class Toy(FolderBackend):
        name = platform = "toy"

        def variants(self):
            return workshop.offered

    backend = Toy(root / "backends" / "toy_backend")
    fleet = read(path)
    jobs = matrix(fleet, [backend], Known(workshop.index().devices()), (), ()).jobs[1:]

    def ask(*changed):
        found = Needs(jobs, fleet, [backend]).of(changed)
        return {each.job.id: (each.picked, each.why) for each in found}

    return ask


@pytest.mark.parametrize(
    ("path", "picked", "why"),
    [
        ("app/used.py", True, "its tests or kernels import app.used"),
        ("app/inner/deep.py", True, "its tests or kernels import app.inner.deep"),
        ("app/sibling.py", True, "its tests or kernels import app.sibling"),
        ("app/inner/__init__.py", True, "its tests or kernels import app.inner"),
        ("app/data.json", True, "beside app, which its tests or kernels import"),
        ("app/unused.py", False, "neither its tests nor backend toy nor its kernels read app/unused.py"),
        ("backends/toy_backend/devices.yaml", True, "in the folder of backend toy"),
        ("backends/other_backend/part.py", False, "neither its tests nor backend toy"),
        ("tests/card/test_new.py", True, "one of its tests, or shared by them"),
        ("tests/card/conftest.py", True, "one of its tests, or shared by them"),
        ("tests/conftest.py", True, "one of its tests, or shared by them"),
        ("tests/elsewhere/test_b.py", False, "neither its tests"),
        ("tests/elsewhere/conftest.py", False, "neither its tests"),
        ("core/deep/x.py", True, "every job needs core"),
        ("ci/runners.yaml", True, "every job needs ci"),
        ("ci/notes.md", False, "no job reads ci/notes.md"),
        ("docs/page.md", False, "no job reads docs/page.md"),
        ("something.bin", True, "nobody knows what reads it"),
    ],
)
def test_a_changed_file_picks_the_jobs_that_read_it(chosen, path, picked, why):
    for found, reason in chosen(path).values():
        assert found is picked, reason
        assert why in reason


def test_one_needed_file_is_enough_and_the_others_are_counted(chosen):
    picked, why = chosen("docs/page.md", "app/used.py", "app/sibling.py")["second"]

    assert (picked, why) == (True, "app/used.py: its tests or kernels import app.used, and 1 more")


def test_no_change_needs_nothing(chosen):
    assert chosen()["second"] == (False, "nothing changed")


def test_kernels_count_by_the_module_that_a_variant_names(workshop, chosen, tmp_path):
    # The toy's kernels lie outside of the checkout until they are put there.
    package = tmp_path / "checkout" / workshop.package
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text("import app.unused\n")

    assert chosen("app/unused.py")["second"] == (True, "app/unused.py: its tests or kernels import app.unused")


def test_imports_are_read_without_running_anything(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "p" / "a.py").write_text("import p.b as c, os.path\nfrom . import d\nraise SystemExit\n")
    for name in "bd":
        (tmp_path / "p" / f"{name}.py").write_text("")

    assert Imports(tmp_path, ["."]).reach(["p.a"]) == {"p", "p.a", "p.b", "p.d"}


OWN = {
    "backends/kvreg_rocm/configs.py": {"rocm"},
    "backends/kvreg_rocm/devices.yaml": {"rocm"},
    "backends/kvreg_xpu/devices.yaml": {"xpu"},
    "backends/kvreg_triton/attend_rows.py": {"cpu", "cuda", "rocm", "xpu"},
    "kvreg/core/sizing.py": {"cpu", "cuda", "rocm", "xpu"},
    "docs/cli.md": set(),
    "tests/cli/test_main.py": set(),
}


@pytest.mark.checkout
def test_kvregs_own_changes_pick_what_they_touch():
    fleet = read(Path(__file__).parents[3] / "ci" / "runners.yaml")
    jobs = matrix(fleet, registry.backends(), Known.installed(), (), ()).jobs
    needs = Needs(jobs, fleet, registry.backends())

    picked = {path: {each.job.platform for each in needs.of([path]) if each.picked} for path in OWN}

    assert picked == OWN
