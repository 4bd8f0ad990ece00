"""Counts out of SASS; the lines are of the form that `nvdisasm -c` prints."""

from kvreg_triton.cross import machine_code

SASS = """\
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/                   SHFL.BFLY PT, R2, R3, 0x1, 0x1f ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_2:
        /*0050*/                   LDS.128 R4, [R2] ;
        /*0060*/                   LDS R8, [R2+0x10] ;
        /*0070*/               @P1 STS.64 [R2+0x20], R4 ;
        /*0080*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0090*/                   IMMA.16832.S8.S8 R4, R4.ROW, R8.COL, R4 ;
        /*00a0*/               @P2 BRA `(.L_x_2) ;
.L_x_3:
        /*00b0*/                   LDSM.16.M88.4 R4, [R2] ;
        /*00c0*/                   IMMA.16832.S8.S8 R4, R4.ROW, R8.COL, R4 ;
        /*00d0*/               @P3 BRA `(.L_x_3) ;
        /*00e0*/                   EXIT ;
.L_x_4:
        /*00f0*/                   BRA `(.L_x_4);
        /*10000*/                  NOP ;
"""


def test_the_first_loop_with_a_matrix_instruction_takes_the_tiles_and_no_such_loop_is_run_once() -> None:
    found = machine_code.read_sass(SASS)

    assert (found["tile_instructions"], found["tile_barriers"]) == (6, 1)
    # the counting loop, a shuffle, a barrier, the ends: all but both loops that multiply, without padding
    assert (found["once_instructions"], found["once_barriers"]) == (7, 1)


def test_wide_accesses_keep_shared_memory_longer() -> None:
    found = machine_code.read_sass(SASS)

    assert found["tile_shared_clocks"] == 4 + 1 + 2
    assert found["once_shared_clocks"] == 1


def test_of_nested_loops_the_inner_one_takes_the_tiles() -> None:
    nested = SASS.replace("@P3 BRA `(.L_x_3)", "@P3 BRA `(.L_x_2)")

    assert machine_code.read_sass(nested)["tile_instructions"] == 6


def test_code_without_a_matrix_loop_or_no_code_at_all_says_nothing() -> None:
    assert machine_code.read_sass(SASS.replace("IMMA", "IMAD")) == {}
    assert machine_code.read_sass("") == {}


def test_what_is_no_binary_is_disassembled_to_nothing() -> None:
    assert machine_code.disassembled(b"no cubin") == ""
