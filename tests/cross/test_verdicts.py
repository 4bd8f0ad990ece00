"""What speaks against a compiled kernel, and which launch parameters are taken: rules over plain figures."""

from dataclasses import replace

import pytest

from kvreg_triton.cross.compilations import Compiled
from kvreg_triton.cross.verdicts import Fault, Limits, Tried, choose, faults, option_faults

GFX942 = Limits("gfx942", 65536)
SOUND = {
    "registers": 224,
    "spill_bytes": 0,
    "shared_bytes": 65536,
    "threads": 128,
    "matrix_instruction": "mfma",
}


def judged(matrix: bool = True, limits: Limits = GFX942, **changed) -> list[tuple[str, str, str]]:
    result = Compiled("ok", 1.0, reading={**SOUND, **changed})
    return [(each.code, each.required, each.found) for each in faults("attend", result, limits, matrix=matrix)]


def test_what_just_fits_has_no_fault() -> None:
    assert judged() == []
    assert judged(spill_bytes=64, threads=1024) == []


def test_memory_over_the_limit_is_a_fault_with_both_numbers() -> None:
    assert judged(shared_bytes=65537) == [("shared_memory", "at most 65536 bytes on gfx942", "65537 bytes")]


def test_spills_over_64_bytes_a_thread_are_a_fault_with_both_numbers() -> None:
    assert judged(spill_bytes=68) == [("spills", "at most 64 bytes a thread", "68 bytes")]


def test_a_product_without_a_matrix_instruction_is_a_fault_only_where_one_is_declared() -> None:
    found = [("matrix_instruction", "a matrix instruction of gfx942", "scalar multiply-adds only")]
    assert judged(matrix_instruction=None) == found
    assert judged(matrix=False, matrix_instruction=None) == []


def test_more_threads_than_a_block_may_have_are_a_fault() -> None:
    assert judged(threads=2048) == [("threads", "at most 1024", "2048")]


def test_unknown_figures_and_limits_refuse_nothing() -> None:
    assert judged(spill_bytes=None, shared_bytes=None, threads=None) == []
    assert judged(shared_bytes=10**9, limits=Limits("gfx1250", None)) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("timeout", "timeout: still compiling after 5 s"),
        ("crash", "crash: killed by SIGABRT: LLVM ERROR: Cannot select"),
        ("error", "error: CompilationError: at 3:4"),
    ],
)
def test_a_compilation_that_ends_badly_is_a_fault_in_the_compilers_own_words(status, words) -> None:
    result = Compiled(status, 5.0, error=words.partition(": ")[2])

    (fault,) = faults("attend split", result, GFX942, matrix=True)

    assert (fault.code, fault.field, fault.found) == ("compile", "attend split", words)
    assert "gfx942" in fault.required


def test_an_option_that_triton_would_drop_is_a_fault_that_names_it() -> None:
    from kvreg_rocm.backend import BACKEND

    lines = BACKEND.validate_options({"num_warps": 4, "waves_per_ue": 2})
    (fault,) = option_faults(lines)

    assert (fault.code, fault.field) == ("option", "waves_per_ue")
    assert "did you mean waves_per_eu?" in fault.found


def attempt(rows: int, *found: Fault, spilled: int = 0) -> Tried:
    compiled = {"attend": Compiled("ok", 1.0, reading={**SOUND, "spill_bytes": spilled})}
    return Tried({"rows": rows}, compiled, found)


SPILLS = Fault("spills", "attend, spilled registers", "at most 64 bytes a thread", "many")
MEMORY = Fault("shared_memory", "attend, shared memory", "at most 65536 bytes on gfx942", "131072 bytes")


def test_the_first_sound_parameters_are_taken() -> None:
    taken = choose([attempt(64, MEMORY), attempt(32), attempt(16)])

    assert taken.taken is not None
    assert (taken.taken.config, taken.note) == ({"rows": 32}, None)


def test_where_everything_spills_the_least_spilling_is_taken_and_says_so() -> None:
    worse, least = attempt(64, SPILLS, spilled=900), attempt(16, SPILLS, spilled=132)

    taken = choose([worse, least, attempt(8, MEMORY, SPILLS, spilled=80)])

    assert taken.taken is least
    assert taken.note == "each of 3 launch parameters spills; these the least, 132 bytes a thread"


def test_where_something_worse_than_spills_stands_against_each_nothing_is_taken() -> None:
    first = attempt(64, MEMORY)

    refused = choose([first, replace(first, faults=(MEMORY, SPILLS))])

    assert (refused.taken, refused.faults) == (None, (MEMORY,))
