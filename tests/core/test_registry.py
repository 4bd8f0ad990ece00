"""Backends: four built in, others by entry point; a plug-in that is broken costs one line and nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvreg.core import notices, registry
from kvreg.core.backends import Backend, FolderBackend

SOUND = """
from pathlib import Path
from kvreg.core.backends import FolderBackend
class Plugged(FolderBackend):
    name = platform = "plugged"
BACKEND = Plugged(Path(__file__).parent)
"""


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a plug-in module `plugged` below tmp_path and forget what was loaded before."""
    site = tmp_path / "site"
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(notices, "_said", set())
    monkeypatch.syspath_prepend(str(site))

    def install(source: str, module: str = "plugged") -> None:
        (site / f"{module}-1.0.dist-info").mkdir(parents=True)
        (site / f"{module}-1.0.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n"
        )
        (site / f"{module}-1.0.dist-info" / "entry_points.txt").write_text(
            f"[kvreg.backends]\n{module} = {module}:BACKEND\n"
        )
        (site / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        sys.modules.pop(module, None)
        registry._load.cache_clear()

    yield install  # type: ignore[misc]
    sys.modules.pop("plugged", None)
    registry._load.cache_clear()


def test_the_built_in_backends_are_there_in_order() -> None:
    assert [backend.name for backend in registry.backends()][:4] == ["cuda", "rocm", "xpu", "cpu"]


def test_each_built_in_backend_keeps_the_protocol() -> None:
    for backend in registry.backends():
        assert isinstance(backend, Backend)
        assert backend.device_file.is_file()


def test_loading_backends_and_variants_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from kvreg.core import registry\n"
        "for backend in registry.backends(): backend.variants(), backend.devices()\n"
        "print([name for name in ('torch', 'triton', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_families_are_those_of_the_variants() -> None:
    assert registry.families() == ("torch", "triton")


def test_a_sound_plug_in_comes_after_the_built_in_ones(fresh: Callable[..., None]) -> None:
    fresh(SOUND)

    assert [backend.name for backend in registry.backends()][-1] == "plugged"
    assert registry.failures() == ()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("def broken(:", "SyntaxError"),
        ("x = 1", "AttributeError"),
        ("class B:\n    name = 'b'\nBACKEND = B()", "found no detect, device_file, devices"),
        (SOUND.replace('"plugged"', '"cuda"'), "cuda, which is taken"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_warning_line(
    fresh: Callable[..., None], capsys: pytest.CaptureFixture[str], source: str, problem: str
) -> None:
    fresh(source)

    names = [backend.name for backend in registry.backends()]

    assert names == ["cuda", "rocm", "xpu", "cpu"]
    assert problem in registry.failures()[0].problem
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("kvreg: warning: plug-in plugged (plugged:BACKEND) is left out: ")


def test_what_a_plug_in_prints_on_import_does_not_reach_standard_output(
    fresh: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    fresh("print('hello')\n" + SOUND)

    registry.backends()

    assert capsys.readouterr().out == ""


def test_a_plug_in_whose_detection_fails_takes_no_card_away(
    fresh: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    fresh(SOUND.replace("BACKEND =", "    def detect(self): raise OSError('no bus')\nBACKEND ="))

    registry.detect()

    assert "plug-in plugged: detection failed: OSError: no bus" in capsys.readouterr().err


def test_the_scan_is_kept_and_seen_through_when_a_package_comes_or_goes(
    fresh: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert registry.entry_points() == ()
    fresh(SOUND)
    assert registry.entry_points() == (("plugged", "plugged:BACKEND"),)

    with monkeypatch.context() as without_metadata:
        without_metadata.setattr(registry, "_scan", lambda: pytest.fail("the kept answer was not used"))
        assert registry.entry_points() == (("plugged", "plugged:BACKEND"),)

    (tmp_path / "site" / "plugged-1.0.dist-info" / "entry_points.txt").unlink()
    (tmp_path / "site" / "plugged-1.0.dist-info" / "METADATA").unlink()
    (tmp_path / "site" / "plugged-1.0.dist-info").rmdir()
    assert registry.entry_points() == ()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1}', '{"schema": 0, "state": [], "plugins": []}'])
def test_a_damaged_scan_is_made_again(fresh: Callable[..., None], tmp_path: Path, damage: str) -> None:
    fresh(SOUND)
    registry.entry_points()
    (kept,) = (tmp_path / "home" / "cache").glob("plugins-*.json")
    kept.write_text(damage)

    assert registry.entry_points() == (("plugged", "plugged:BACKEND"),)


def test_a_home_that_cannot_be_written_costs_only_the_scan(
    fresh: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "file" / "below"))
    fresh(SOUND)

    assert registry.entry_points() == (("plugged", "plugged:BACKEND"),)


def test_a_folder_backend_is_a_backend_that_offers_nothing(tmp_path: Path) -> None:
    class Empty(FolderBackend):
        name = platform = "empty"

    backend = Empty(tmp_path)

    assert isinstance(backend, Backend)
    assert (tuple(backend.detect()), tuple(backend.variants())) == ((), ())
    assert backend.validate_options({"num_warps": 4}) == ("num_warps: empty takes no launch option; leave it out",)
