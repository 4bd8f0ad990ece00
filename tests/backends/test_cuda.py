"""What the CUDA platform lets a tuner try."""

from __future__ import annotations

from kvreg.core import resolve
from kvreg.core.modes import Mode
from kvreg.core.requests import Request
from kvreg_cuda.backend import BACKEND
from kvreg_cuda.variants import own

H200 = resolve.resolve("h200").device
DECODE, *PAIRED, WRITE = own()


def request(head_size: int = 128) -> Request:
    return Request("h200", Mode.INT4_PER_TOKEN_HEAD, head_size, 32, 8, 16)


def test_the_int8_decode_is_tried_with_whole_matrix_instructions_only():
    assert all(tile % 32 == 0 for tile in BACKEND.space(DECODE, H200, request())["tile"])


def test_pairs_are_tried_in_tiles_that_a_16_bit_matrix_instruction_takes():
    for variant in PAIRED:
        assert all(tile % 16 == 0 for tile in BACKEND.space(variant, H200, request())["tile"])


def test_its_default_is_one_of_the_configs_that_are_tried():
    space = BACKEND.space(DECODE, H200, request())
    default = DECODE.default_config(H200, request())
    tried = {"maxnreg": 255, **default}  # a default that names no bound has the hardware's
    assert {name: tried[name] in values for name, values in space.items()} == dict.fromkeys(space, True)
    assert BACKEND.unfit(DECODE, H200, request(), default) is None


def test_more_tiles_in_flight_than_shared_memory_holds_are_not_tried():
    config = {**DECODE.default_config(H200, request(512)), "tile": 128, "num_stages": 9}
    assert BACKEND.unfit(DECODE, H200, request(512), config) == (
        "4 tiles ahead are 262144 B of shared memory, at most 232448 B"
    )


def test_the_rotating_write_is_tried_with_whole_matrix_instructions_only():
    for head_size, rows in ((32, (16, 32, 64)), (96, (4, 8, 16, 32, 64)), (512, (1, 2, 4, 8, 16))):
        assert BACKEND.space(WRITE, H200, request(head_size))["rows"] == rows


def test_the_default_of_the_rotating_write_is_one_of_the_configs_that_are_tried():
    for head_size in (32, 128, 256, 512):
        space, default = BACKEND.space(WRITE, H200, request(head_size)), WRITE.default_config(H200, request(head_size))
        assert default["rows"] in space["rows"]
        assert default["num_warps"] in space["num_warps"]
