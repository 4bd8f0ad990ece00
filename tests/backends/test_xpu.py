"""Intel: what triton-xpu is told of a card, what is read of its SPIR-V and of ocloc, and compiling for real."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import pytest

from kvreg.core import environment, environments
from kvreg.core.devices import Device
from kvreg.core.errors import Refused
from kvreg.core.index import Index
from kvreg.core.modes import Mode
from kvreg_triton.cross.compilations import _pass_error
from kvreg_xpu import ocloc, spirv
from kvreg_xpu.differences import grf_mode, takes_block_loads
from kvreg_xpu.targets import target_of
from kvreg_xpu.toolchain import CHILD, RECIPE


@pytest.fixture(scope="module")
def devices() -> dict[str, Device]:
    return {each.key: each for each in Index.open().devices()}


# --- targets --------------------------------------------------------------------------------------------------------


def test_cards_of_one_arch_share_their_compilations(devices: dict[str, Device]) -> None:
    assert target_of(devices["b580"]) == target_of(devices["b50"]) == target_of(devices["b70"])
    assert target_of(devices["max1550"]) == target_of(devices["max1100"])


def test_only_dpas_of_sixteen_columns_counts_as_a_matrix_unit(devices: dict[str, Device]) -> None:
    for key, has in (("b580", True), ("max1550", True), ("lnl-140v", True), ("a770", False)):
        backend, properties, lanes = target_of(devices[key])
        assert (backend, lanes) == ("xpu", 32)
        assert properties["has_subgroup_matrix_multiply_accumulate"] is has, key
        assert properties["has_subgroup_2d_block_io"] is has, key


def test_a_device_without_the_facts_is_refused_with_the_entry_to_mend() -> None:
    bare = Device(key="arc-z", name="Arc Z", platform="xpu", arch="zzz", compute_units=None)

    with pytest.raises(Refused, match=r"dpas_exec_size to its entry in backends/kvreg_xpu/devices\.yaml"):
        target_of(bare)


def test_a_register_count_has_another_word_in_each_release() -> None:
    assert [grf_mode(128, release) for release in ("3.3.0b1", "3.3.1", "3.8.0")] == ["small", "small", "128"]
    assert [grf_mode(256, release) for release in ("3.3.0b1", "3.8.0")] == ["large", "256"]


def test_rows_of_int4_take_block_loads_only_where_their_bytes_are_a_multiple_of_sixteen() -> None:
    sizes = (64, 72, 80, 96, 112, 128, 256)
    fit = [size for size in sizes if takes_block_loads(Mode.INT4_PER_TOKEN_HEAD.row_bytes(size))]

    assert fit == [64, 96, 128, 256]


def test_the_compilers_words_for_a_failed_pass_are_kept_without_its_layouts() -> None:
    errors = (
        b"warning: something\n"
        b"/w/rotation.py:44:49: error: 'tt.join' op inferred type(s) 'tensor<16xf32, #ttg.linear<{register = [[0]]}>>'"
        b" are incompatible\n  x = tl.reshape(\n/w/rotation.py:44:49: error: 'tt.join' op failed\n"
    )

    assert _pass_error(errors) == (
        "; 'tt.join' op inferred type(s) 'tensor<16xf32, #ttg.linear<...>>' are incompatible"
    )
    assert _pass_error(b"Killed\n") == ""


# --- SPIR-V ---------------------------------------------------------------------------------------------------------

DPAS = "_Z38intel_sub_group_f16_f16_matrix_mad_k16Dv8_sDv8_iDv8_f"
ONE_ROW = "_Z40intel_sub_group_bf16_bf16_matrix_mad_k16sDv8_if"
BLOCK_LOAD = "_Z41intel_sub_group_2d_block_read_16b_8r16x1cPU3AS1viiiDv2_iPt"


def module(names: dict[int, str], called: list[int]) -> bytes:
    """Return a module of imported functions and calls to them; no compiler would take it."""
    words = [spirv.MAGIC, 0x00010400, 0, 100, 0]
    for function, name in names.items():
        text = name.encode() + b"\0" * (4 - len(name) % 4)
        literal = struct.unpack(f"<{len(text) // 4}I", text)
        operands = [function, 41, *literal, 1]
        words += [(len(operands) + 1) << 16 | 71, *operands]
    for index, function in enumerate(called):
        words += [4 << 16 | 57, 1, 50 + index, function]
    return struct.pack(f"<{len(words)}I", *words)


def test_dpas_is_counted_by_its_calls_and_its_rows_are_the_accumulators() -> None:
    called = spirv.calls(module({7: DPAS, 8: ONE_ROW, 9: BLOCK_LOAD}, [7, 7, 7, 8, 9, 9]))

    assert called == Counter({DPAS: 3, BLOCK_LOAD: 2, ONE_ROW: 1})
    assert spirv.dpas(called, 16) == (4, ["m1n16k16", "m8n16k16"])
    assert sum(count for name, count in called.items() if spirv.BLOCK_LOAD in name) == 2


def test_an_imported_function_that_nobody_calls_is_no_dpas() -> None:
    assert spirv.dpas(spirv.calls(module({7: DPAS}, [])), 16) == (0, [])


@pytest.mark.parametrize("broken", [b"", b"\0" * 20, module({}, [])[:-2], module({}, []) + b"\0\0\0\0"])
def test_what_is_no_spirv_is_an_error(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"SPIR-V|instruction of no words"):
        spirv.calls(broken)


# --- ocloc ----------------------------------------------------------------------------------------------------------

PRINTED = """Compilation from IR - skipping loading of FCL

warning: kernel attend  compiled SIMD16 allocated 256 regs and spilled around 2219

Build succeeded.
"""
"""What ocloc 22.43.24595 printed of int4 decode at head size 128 with 256 registers."""

ZE_INFO = b"""\x7fELF\x00version:         '1.20'
kernels:
  - name:            Intel_Symbol_Table_Void_Program
    execution_env:
      grf_count:       256
      simd_size:       32
  - name:            reduce
    execution_env:
      grf_count:       128
      has_4gb_buffers: true
      simd_size:       16
...\x00"""
"""The head of a zebin's description, as that release writes it."""


def test_spills_are_what_ocloc_warns_of() -> None:
    found = ocloc.parse("ocloc 22.43.24595", PRINTED, ZE_INFO, "attend")

    assert (found.lanes, found.registers, found.spilled) == (16, 256, 2219)
    assert found.to_json()["label"] == "ocloc 22.43.24595"


def test_a_kernel_without_a_warning_spills_nothing_and_its_registers_stand_in_the_binary() -> None:
    found = ocloc.parse("ocloc 22.43.24595", PRINTED, ZE_INFO, "reduce")

    assert (found.lanes, found.registers, found.spilled) == (16, 128, 0)


def test_of_a_kernel_that_is_not_there_nothing_is_known() -> None:
    found = ocloc.parse("ocloc 25", "Build succeeded.", ZE_INFO, "write")

    assert (found.lanes, found.registers, found.spilled) == (None, None, None)


def test_a_program_that_fails_gives_its_own_words(tmp_path: Path) -> None:
    program = tmp_path / "ocloc"
    program.write_text("#!/bin/sh\necho 'Error: cannot select'\nexit 7\n")
    program.chmod(0o755)

    found = ocloc.figures(program, tmp_path / "kernel.spv", "attend", "")

    assert found.error == "Error: cannot select"
    assert found.label == "ocloc of unknown release"


# --- the compiler itself --------------------------------------------------------------------------------------------


def installed() -> environments.Environment | None:
    """Return the environment that XPU_TOOLCHAIN names, else the user's own; a test's KVREG_HOME holds none."""
    named = os.environ.get("XPU_TOOLCHAIN")
    folder = Path(named) if named else environments.place(environment.home({}), RECIPE.name)
    return environments.find(folder, RECIPE)


@pytest.mark.long
@pytest.mark.parametrize(("op", "matrix"), [("write", 0), ("decode", 1), ("prefill", 1)])
def test_a_shared_kernel_of_each_op_becomes_spirv(devices: dict[str, Device], op: str, matrix: int) -> None:
    toolchain = installed()
    if toolchain is None:
        pytest.skip("no triton-xpu: `kvreg toolchain install xpu`, or name its folder in XPU_TOOLCHAIN")
    from kvreg.core.asking import make_request
    from kvreg_triton.cross.compilations import Compiler
    from kvreg_triton.cross.launches import launches
    from kvreg_xpu.backend import BACKEND

    device = devices["b580"]
    request = make_request("b580", "int4_per_token_head", 128)
    (variant,) = (each for each in BACKEND.variants() if each.mode == request.mode and each.op == op)
    made = launches(variant, device, request, variant.default_config(device, request), target_of(device))
    compiler = Compiler(source="", python=str(toolchain.interpreter), triton=RECIPE.version, child=CHILD)

    for index, result in compiler.run([each.specialization for each in made]):
        assert result.status == "ok", (made[index].form, result.error)
        assert result.triton.startswith("3.3")
        reading = result.reading
        assert reading["registers"] is None  # SPIR-V is no machine code: unknown, never guessed
        assert reading["shared_bytes"] <= device.shared_per_block_max_bytes
        if made[index].form.startswith("attend"):
            assert reading["matrix_instruction"] == "dpas"
            assert reading["matrix_instructions"] >= matrix
            assert reading["matrix_shapes"] == ["m8n16k16"]
            assert reading["lanes"] == 16
