"""Launch parameters that an edited file may hold and no launch can have: refused before they are selected."""

from __future__ import annotations

import itertools

import pytest

from kvreg.core import resolve
from kvreg.core.launchable import Launchable
from kvreg.core.registry import backends
from kvreg.core.requests import Request

INT32 = 2**31 - 1


def offered(device: str, name: str, **asked: int) -> Launchable:
    on = resolve.resolve(device).device
    backend = next(each for each in backends() if each.platform == on.platform)
    variant = next(each for each in backend.variants() if str(each.id) == f"{name}@1")
    shape = {"head_size": 128, "q_heads": 32, "kv_heads": 8, **asked}
    return Launchable(backend, variant, on, Request(device=on.key, mode=variant.mode, **shape))


def said(of: Launchable, **changed: int) -> str | None:
    return of.impossible({**of.default, **changed})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"tile": 0}, "tile 0 instead of at least 1"),
        ({"tile": 1}, "tile 1 instead of 32 to 64"),
        ({"tile": 8}, "tile 8 instead of 32 to 64"),
        ({"tile": 48}, "tile 48 instead of a power of two"),
        ({"tile": 1 << 20}, "tile 1048576 instead of 32 to 64"),
        ({"rows": 1024}, "rows 1024 instead of 8"),
        ({"num_warps": 3}, "num_warps: required one of 1, 2, 4, 8, 16, 32, found 3"),
        ({"num_warps": -1}, "num_warps -1 instead of at least 1"),
        ({"num_stages": 1000}, "num_stages: required an integer from 1 to 8, found 1000"),
        ({"chunk": 0}, "chunk 0 instead of at least 1"),
        ({"chunk": 1}, "chunk 1 instead of 512"),
        ({"chunk": 10**30}, f"chunk {10**30} instead of at most {INT32}"),
        ({"programs_per_unit": 0}, "programs_per_unit 0 instead of at least 1"),
        ({"programs_per_unit": 1024}, "programs_per_unit 1024 instead of 4 to 12"),
        ({"maxnreg": 1}, "maxnreg: required an integer from 24 to 255, found 1"),
        ({"num_ctas": 16}, "num_ctas: required one of 1, found 16"),
        ({"foo": 3}, "foo: required an option of this platform, found an unknown name"),
        (
            {"matrix_instr_nonkdim": 16},
            "matrix_instr_nonkdim: required an option of this platform, found an unknown name",
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_launched_is_named_with_what_could(changed: dict[str, int], expected: str) -> None:
    assert said(offered("h200", "cuda-int4-decode"), **changed) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tile": 64},
        {"num_warps": 4},
        {"num_stages": 7},
        {"maxnreg": 24},
        {"num_ctas": 1},
        {"programs_per_unit": 6},
    ],
    ids=str,
)
def test_what_the_platform_takes_is_launched_whether_a_space_has_it_or_not(changed: dict[str, int]) -> None:
    assert said(offered("h200", "cuda-int4-decode"), **changed) is None


@pytest.mark.parametrize("device", ["h200", "rtx3090", "v100", "mi300x", "rx7900xtx", "max1550", "cpu"])
def test_all_that_a_tuner_may_write_can_be_launched(device: str) -> None:
    """Each default and each value of each space, of every variant and some shapes."""
    on = resolve.resolve(device).device
    backend = next(each for each in backends() if each.platform == on.platform)
    refused = []
    for variant, size, group in itertools.product(backend.variants(), (64, 96, 128, 256, 512), (1, 4, 16)):
        request = Request(device=on.key, mode=variant.mode, head_size=size, q_heads=8 * group, kv_heads=8)
        of = Launchable(backend, variant, on, request)
        changes = [{name: value} for name, values in of.values.items() for value in values]
        refused += [(variant.id.name, size, group, each) for each in ({}, *changes) if said(of, **each)]

    assert refused == []


def test_threads_are_counted_in_the_device_s_own_warps() -> None:
    assert said(offered("h200", "triton-int4-decode"), num_warps=32) is None
    assert said(offered("max1550", "triton-int4-decode"), num_warps=64) == (
        "num_warps 64 of 2048 threads instead of at most 1024"
    )


def test_the_plain_backend_takes_any_positive_number_of_rows_that_is_an_int32() -> None:
    cpu = offered("cpu", "torch-int4-write")

    assert said(cpu, rows=3276) is None
    assert said(cpu, rows=INT32) is None
    assert said(cpu, rows=-1) == "rows -1 instead of at least 1"
    assert [said(cpu, rows=rows) for rows in (2**31, 2**62, 10**30)] == [
        f"rows {rows} instead of at most {INT32}" for rows in (2**31, 2**62, 10**30)
    ]
    assert said(cpu, num_warps=4) == "num_warps: cpu takes no launch option"


def test_a_parameter_whose_default_is_off_may_be_off() -> None:
    assert said(offered("mi300x", "triton-int4-decode"), waves_per_eu=0) is None
    assert said(offered("mi300x", "triton-int4-decode"), waves_per_eu=-1) == (
        "waves_per_eu: required an integer from 0 to 8, found -1"
    )
