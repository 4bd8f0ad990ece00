"""Figures out of the compiler's texts; the lines are ones that Triton 3.9.0 and its ptxas and LLVM printed."""

from kvreg_triton.cross import readings

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attend' for 'sm_90a'
ptxas info    : Function properties for attend
    104 bytes stack frame, 104 bytes spill stores, 132 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 104 bytes cumulative stack size
"""
PTX = """\
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], 0x10, %r3;
    cp.async.ca.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], 0x4, %r3;
    cp.async.commit_group;
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.b32 %r9, [ %rd9 + 0 ];
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
"""
AMDGCN = """\
\tbuffer_load_dwordx4 v[2:5], v1, s[8:11], 0 offen
\tglobal_load_dword v6, v[7:8], off
\tglobal_load_ubyte v6, v[7:8], off
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
\tv_mfma_f32_16x16x16_f16 a[0:3], v[4:5], v[6:7], a[0:3]
; Occupancy: 2
; codeLenInByte = 48384
amdhsa.kernels:
  - .agpr_count:     41
    .group_segment_fixed_size: 16
    .max_flat_workgroup_size: 128
    .private_segment_fixed_size: 552
    .sgpr_count:     89
    .sgpr_spill_count: 0
    .vgpr_count:     297
    .vgpr_spill_count: 33
    .wavefront_size: 64
"""


def test_ptxas_says_registers_and_spills_and_the_larger_of_stores_and_loads_counts() -> None:
    found = readings.read_cuda(PTX, PTXAS, shared=6528, threads=32)

    assert (found["registers"], found["spill_bytes"], found["stack_bytes"]) == (255, 132, 104)
    assert (found["shared_bytes"], found["threads"]) == (6528, 32)


def test_without_a_ptxas_log_registers_and_spills_are_unknown_not_zero() -> None:
    found = readings.read_cuda(PTX, "", shared=0, threads=32)

    assert (found["registers"], found["spill_bytes"]) == (None, None)


def test_ptx_says_the_matrix_instruction_its_shape_and_the_width_of_loads() -> None:
    found = readings.read_cuda(PTX, PTXAS, shared=0, threads=32)

    assert (found["matrix_instruction"], found["matrix_instructions"]) == ("mma.sync", 1)
    assert found["matrix_shapes"] == ["m16n8k16"]
    assert found["loads"] == {"cp.async 16": 1, "cp.async 4": 1, "global 16": 1, "global 4": 1}


def test_amd_text_says_everything_and_a_spilled_register_is_four_bytes_of_a_lane() -> None:
    found = readings.read_hip(AMDGCN, shared=8192, warps=2)

    assert (found["registers"], found["agprs"], found["sgprs"]) == (297, 41, 89)
    assert (found["spill_bytes"], found["scratch_bytes"]) == (132, 552)
    assert (found["threads"], found["lanes"], found["waves_per_simd"]) == (128, 64, 2)
    assert found["code_bytes"] == 48384
    assert (found["matrix_instruction"], found["matrix_instructions"]) == ("mfma", 2)
    assert found["matrix_shapes"] == ["16x16x16"]
    assert found["loads"] == {"buffer 16": 1, "global 1": 1, "global 4": 1}


def test_threads_are_counted_from_warps_because_the_text_never_says_more_than_1024() -> None:
    assert readings.read_hip(AMDGCN, shared=0, warps=32)["threads"] == 2048


def test_shared_memory_is_tritons_and_the_static_part_together() -> None:
    assert readings.read_hip(AMDGCN, shared=8192, warps=2)["shared_bytes"] == 8208


def test_spirv_says_dpas_and_leaves_registers_and_spills_unknown() -> None:
    found = readings.read_xpu(b"\x03\x02intel_sub_group_f16_f16_matrix_mad_k16", shared=128)

    assert (found["matrix_instruction"], found["shared_bytes"]) == ("dpas", 128)
    assert (found["registers"], found["spill_bytes"]) == (None, None)


def test_the_worst_of_several_kernels_counts_and_one_unknown_figure_makes_it_unknown() -> None:
    split = readings.read_cuda(PTX, PTXAS, shared=6528, threads=32)
    reduce = {**split, "registers": 50, "spill_bytes": 0, "shared_bytes": 8192, "matrix_instruction": None}

    worst = readings.worst({"attend": split, "reduce": reduce})

    assert (worst["registers"], worst["spill_bytes"], worst["shared_bytes"]) == (255, 132, 8192)
    assert worst["matrix_instruction"] == "mma.sync"
    assert readings.worst({"attend": split, "other": {**reduce, "registers": None}})["registers"] is None
