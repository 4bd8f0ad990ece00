"""A plug-in with crooked kernels for device `cpu`, and the command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PLUGIN = '''
"""Kernels that are right, wrong, that crash, hang and raise: what a validation must survive."""

import os, time
from pathlib import Path

from kvreg.core.backends import FolderBackend
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Constraints, Variant, VariantId


def _variant(name, op, mode=Mode.NONE, launcher=None):
    target = f"crooked_kernels:{launcher or name.replace('-', '_')}"
    return Variant(
        id=VariantId(f"crooked-{name}", 1), op=op, mode=mode, family="crooked", accuracy="exact", launcher=target,
        kernels=(target,), format=lambda device, head: Format("bfloat16", None, None, None, "", None),
        default_config=lambda device, request: {"scores": 1 << 22, "rows": 1 << 12},
        # Narrow, so that a validation has few cells: two kinds, three groups, and the long context.
        constraints=Constraints(layouts=("planar.1",), dtypes=("bf16",), page_max=64, group_max=7),
        matrix_instruction=False,
    )


class Crooked(FolderBackend):
    name = "crooked"
    platform = "cpu"

    def devices(self):
        return ()

    def variants(self):
        return (
            _variant("right", Op.DECODE), _variant("shrunk", Op.DECODE), _variant("quits", Op.DECODE),
            _variant("hangs", Op.DECODE), _variant("raises", Op.PREFILL), _variant("store", Op.WRITE),
            _variant("spills-over", Op.WRITE), _variant("late", Op.PREFILL),
        )


BACKEND = Crooked(Path(__file__).parent)
'''

KERNELS = '''
import os, time
from kvreg_cpu.attend import attend_none
from kvreg_cpu.write import write_none

FACTOR = 0.9


class _Like:
    splits = staticmethod(attend_none.splits)
    chunk = staticmethod(attend_none.chunk)

    def __init__(self, work):
        self.work = work

    def __call__(self, call, config):
        self.work(call, config)


def _shrink(call, config):
    attend_none(call, config)
    call.out.mul_(FACTOR)

def _quit(call, config):
    os._exit(9)

def _hang(call, config):
    time.sleep(600)

def _raise(call, config):
    raise RuntimeError("no such tile")

def _late(call, config):
    """Dies in one cell of many: the batches of group 7."""
    if call.q.shape[1] == 14:
        os.kill(os.getpid(), 11)
    attend_none(call, config)

right = _Like(attend_none)
shrunk = _Like(_shrink)
quits = _Like(_quit)
hangs = _Like(_hang)
raises = _Like(_raise)
late = _Like(_late)
store = write_none

def spills_over(cache, k, v, slots, config):
    write_none(cache, k, v, slots, config)
    cache.k[-1, -1] = 1.0
'''


@dataclass(frozen=True)
class Shop:
    """A folder with the plug-in installed, a KVREG_HOME, and the command line over both."""

    folder: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder), *(entry for entry in sys.path if entry)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KVREG_")}
        return {**kept, "PYTHONPATH": path, "KVREG_HOME": str(self.home), "OMP_NUM_THREADS": "1", **more}

    def popen(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from kvreg.cli.main import run; run()", *arguments]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**more),
            cwd=self.folder,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        with self.popen(*arguments, **more) as process:
            out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def validate(self, *names: str, head: int = 64, options: tuple[str, ...] = ()) -> tuple[int, dict]:
        """Validate crooked variants in their short form; returns the exit code and the JSON document."""
        chosen = [word for name in names for word in ("--variant", f"crooked-{name}")]
        common = ["--device", "cpu", "--head-size", str(head), "--seeds", "1", "--jobs", "1", "--json"]
        done = self.run("validate", *common, *chosen, *options, KVREG_BACKEND="crooked")
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    folder = tmp_path / "shop"
    made = folder / "crooked-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: crooked\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[kvreg.backends]\ncrooked = crooked_plugin:BACKEND\n")
    (folder / "crooked_plugin.py").write_text(PLUGIN)
    (folder / "crooked_kernels.py").write_text(KERNELS)
    return Shop(folder, tmp_path / "home")
