"""What the CUDA platform lets a tuner try."""

from __future__ import annotations

import pytest

from kvreg.core import resolve
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg_cuda.backend import BACKEND
from kvreg_cuda.variants import own

H200 = resolve.resolve("h200").device
DECODE, WRITE = (each for name in ("cuda-int4-decode", "cuda-int4-write") for each in own() if each.id.name == name)
PAIRED = [each for each in own() if each.op is Op.DECODE and each is not DECODE]
PREFILL = [each for each in own() if each.op is Op.PREFILL]


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


@pytest.mark.parametrize("head_size", [40, 64, 128, 256, 512])
@pytest.mark.parametrize("variant", PREFILL, ids=lambda each: each.id.name)
def test_the_default_of_prefill_is_tried_and_fits_shared_memory(variant, head_size):
    space, default = BACKEND.space(variant, H200, request(head_size)), variant.default_config(H200, request(head_size))

    assert {name: default[name] in values for name, values in space.items()} == dict.fromkeys(space, True)
    assert BACKEND.unfit(variant, H200, request(head_size), default) is None


def test_prefill_in_more_shared_memory_than_a_block_has_is_not_tried():
    plain = next(each for each in PREFILL if each.mode is Mode.NONE)
    config = {**plain.default_config(H200, request()), "rows": 128, "tile": 128, "num_stages": 4, "num_warps": 8}
    # Four stages of 128 rows of K and V, and 128 of q, 256 bytes each.
    assert BACKEND.unfit(plain, H200, request(), config) == "294912 B of shared memory, at most 232448 B"
