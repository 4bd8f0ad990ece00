"""Compilations in processes of their own: real ones, ones that abort and hang, and what the answers are kept under."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from kvreg_triton.cross.compilations import Compiled, Compiler
from kvreg_triton.cross.specializations import Specialization
from kvreg_triton.cross.verdicts import Limits, faults

KERNELS = '''\
"""Small kernels, each of which goes wrong in one way when asked to."""

import torch
import triton
import triton.language as tl
from triton.language import target_info


def where(device: torch.device) -> torch.Tensor:
    """What stands in the module of a kernel's launcher."""


@triton.jit
def product(a, b, out, steps, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    """Sum of products of (M, K) and (K, N) tiles."""
    row, column, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros([M, N], tl.float32)
    for step in range(steps):
        left = tl.load(a + step * M * K + row[:, None] * K + inner[None, :])
        right = tl.load(b + step * K * N + inner[:, None] * N + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + row[:, None] * N + column[None, :], total)


@triton.jit
def widened(a, out, N: tl.constexpr):
    """Values as bf16."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(a + at).to(tl.bfloat16))


@triton.jit
def asks(out):
    """1 where the card is one that it is written for."""
    if target_info.cuda_capability_geq(8, 6):
        tl.store(out, 1.0)
    else:
        tl.static_assert(False)
'''

ABORTS = '''\
"""A compiler that ends as LLVM does where it cannot select an instruction."""

import os
import sys

sys.stdin.read()
print("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.cvt.pk.f32.fp8", file=sys.stderr, flush=True)
os.abort()
'''

HANGS = '''\
"""A compiler that takes for ever, in a process that it starts."""

import subprocess
import sys
from pathlib import Path

sys.stdin.read()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("PLACE").write_text(str(child.pid))
child.wait()
'''

GFX942, SM_86 = ("hip", "gfx942", 64), ("cuda", 86, 32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that children find."""
    (tmp_path / "cross_kernels.py").write_text(KERNELS)
    (tmp_path / "aborting.py").write_text(ABORTS)
    (tmp_path / "hanging.py").write_text(HANGS.replace("PLACE", str(tmp_path / "pid")))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def product(target, shape=(16, 16, 16), **options) -> Specialization:
    pointers = dict.fromkeys(("a", "b"), "*fp16") | {"out": "*fp32"}
    sizes = dict(zip(("K", "N", "M"), shape, strict=True))
    return Specialization(
        kernel="cross_kernels:product",
        signature={**pointers, "steps": "i32", **dict.fromkeys(sizes, "constexpr")},
        constexprs=sizes,
        attrs={name: [["tt.divisibility", 16]] for name in pointers},
        options={"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True, **options},
        target=target,
    )


def codes(result: Compiled, limits: Limits) -> list[tuple[str, str]]:
    return [(each.code, each.found) for each in faults("product", result, limits, matrix=True)]


def test_a_kernel_is_compiled_for_cards_that_are_not_there(folder: Path) -> None:
    both = dict(Compiler(jobs=2).run([product(GFX942), product(SM_86)]))

    assert [both[index].status for index in (0, 1)] == ["ok", "ok"]
    assert both[0].reading["matrix_instruction"] == "mfma"
    assert both[1].reading["matrix_instruction"] == "mma.sync"
    for result in both.values():
        assert result.triton == triton.__version__
        assert result.reading["registers"] > 0
        assert result.reading["spill_bytes"] == 0


def test_a_kernel_that_asks_what_card_it_is_compiled_for_gets_the_one_that_is_not_there(folder: Path) -> None:
    one = Specialization("cross_kernels:asks", {"out": "*fp32"}, {}, {}, {"num_warps": 1}, SM_86)

    result = Compiler().compile(one)

    assert (result.status, result.error) == ("ok", "")


def test_a_tile_too_large_for_64_kib_compiles_and_is_caught_by_its_number(folder: Path) -> None:
    result = Compiler().compile(product(GFX942, (256, 128, 128), num_stages=2))

    assert result.status == "ok"  # the compiler does not check
    assert result.reading["shared_bytes"] > 65536
    found = codes(result, Limits("gfx942", 65536, spill_bytes=None))
    assert found == [("shared_memory", f"{result.reading['shared_bytes']} bytes")]


def test_a_matrix_shape_that_becomes_multiply_adds_is_caught(folder: Path) -> None:
    result = Compiler().compile(product(GFX942, matrix_instr_nonkdim=4))

    assert (result.status, result.reading["matrix_instruction"]) == ("ok", None)
    assert ("matrix_instruction", "scalar multiply-adds only") in codes(result, Limits("gfx942", 65536, None))


def test_an_option_that_triton_drops_changes_nothing_and_is_caught_before(folder: Path) -> None:
    from kvreg_rocm.backend import BACKEND

    plain, dropped = dict(Compiler(jobs=2).run([product(GFX942), product(GFX942, waves_per_ue=2)])).values()

    assert dropped.reading == plain.reading
    assert BACKEND.validate_options({"waves_per_ue": 2})


def test_32_warps_of_64_lanes_compile_and_are_caught_by_their_number(folder: Path) -> None:
    result = Compiler().compile(product(GFX942, (32, 128, 128), num_warps=32))

    assert result.status == "ok"
    assert codes(result, Limits("gfx942", None)) == [("threads", "2048")]


def test_an_abort_of_llvm_is_a_result_in_its_own_words(folder: Path) -> None:
    result = Compiler(child="aborting").compile(product(GFX942))

    assert result.status == "crash"
    assert result.error == "killed by SIGABRT: LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.cvt.pk.f32.fp8"


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="later releases compile it")
def test_fnuz_on_gfx1100_aborts_triton_3_6_and_is_a_result(folder: Path) -> None:
    fnuz = Specialization(
        kernel="cross_kernels:widened",
        signature={"a": "*fp8e4b8", "out": "*bf16", "N": "constexpr"},
        constexprs={"N": 256},
        attrs={},
        options={"num_warps": 4},
        target=("hip", "gfx1100", 32),
    )

    result = Compiler().compile(fnuz)

    assert result.status == "crash"
    assert result.error == "killed by SIGABRT: LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.cvt.pk.f32.fp8"


def test_a_compilation_that_takes_for_ever_is_killed_with_all_that_it_started(folder: Path) -> None:
    result = Compiler(child="hanging", timeout_s=1.5).compile(product(GFX942))

    assert result.status == "timeout"
    assert result.error == "still compiling after 1.5 s; its process group was killed"
    started = int((folder / "pid").read_text())
    assert gone_within(started, 5.0)


def gone_within(process: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # dead, and nobody has asked for its exit code
            return True
        time.sleep(0.05)
    return False


def test_what_a_kernel_cannot_say_is_an_error_with_the_compilers_words(folder: Path) -> None:
    result = Compiler().compile(replace(product(SM_86), signature={**product(SM_86).signature, "a": "*fp8e4b8"}))

    assert result.status == "error"
    assert "type fp8e4b8 not supported in this architecture" in result.error


def test_an_answer_is_kept_for_the_same_kernel_options_target_and_release_only(tmp_path: Path, folder: Path) -> None:
    one = product(GFX942)
    kept = Compiler(source="a", cache=tmp_path / "cache", triton="3.9.0", child="aborting")
    assert [result.status for _, result in kept.run([one, one])] == ["crash", "crash"]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 1

    assert kept.kept(one) is not None
    assert kept.kept(product(GFX942, num_warps=8)) is None
    assert kept.kept(product(SM_86)) is None
    assert kept.kept(one, "b") is None
    assert replace(kept, triton="3.6.0").kept(one) is None
    assert replace(kept, environment={"AMDGCN_USE_BUFFER_OPS": "0"}).kept(one) is None


def test_a_kept_answer_that_was_cut_off_is_had_again(tmp_path: Path, folder: Path) -> None:
    one, kept = product(GFX942), Compiler(cache=tmp_path / "cache", child="aborting")
    list(kept.run([one]))
    (path,) = (tmp_path / "cache").rglob("*.json")
    whole = path.read_bytes()
    path.write_bytes(whole[:20])

    assert [result.status for _, result in kept.run([one])] == ["crash"]
    assert json.loads(path.read_bytes())["status"] == "crash"


LOADED = """
from kvreg_cuda.backend import BACKEND
from kvreg_triton.cross.child import _without_torch
from kvreg_triton.cross.specializations import load_kernel

_without_torch()
for variant in BACKEND.variants():
    for kernel in variant.kernels:
        load_kernel(kernel)
"""


def test_every_kernel_for_nvidia_is_loaded_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
