"""Launch parameters that an edited file may hold and no launch can have: refused before they are selected."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from kvreg.core import resolve
from kvreg.core.launchable import impossible

DEFAULT = MappingProxyType(
    {"rows": 8, "tile": 64, "num_warps": 1, "num_stages": 3, "programs_per_unit": 8, "chunk": 512}
)


def on(device: str, **changed: int) -> str | None:
    return impossible({**DEFAULT, **changed}, DEFAULT, resolve.resolve(device).device)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tile": 0}, "tile 0 instead of at least 1"),
        ({"tile": 63}, "tile 63 instead of a power of two"),
        ({"tile": 1 << 20}, "tile 1048576 instead of at most 1024"),
        ({"rows": 7}, "rows 7 instead of a power of two"),
        ({"num_warps": 3}, "num_warps 3 instead of a power of two"),
        ({"num_warps": -1}, "num_warps -1 instead of at least 1"),
        ({"num_stages": 1000}, "num_stages 1000 instead of at most 16"),
        ({"chunk": 0}, "chunk 0 instead of at least 1"),
        ({"programs_per_unit": 0}, "programs_per_unit 0 instead of at least 1"),
        ({"maxnreg": 1}, "maxnreg 1 instead of 16 to 255"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_launched_is_named_with_what_could(changed: dict[str, int], said: str) -> None:
    assert on("h200", **changed) == said


def test_threads_are_counted_in_the_device_s_own_warps() -> None:
    assert on("h200", num_warps=32) is None
    assert on("mi300x", num_warps=32) == "num_warps 32 of 2048 threads instead of at most 1024"


def test_the_plain_backend_takes_any_positive_number_of_rows() -> None:
    cpu = resolve.resolve("cpu").device

    assert impossible({"rows": 3276}, {"rows": 4096}, cpu) is None
    assert impossible({"rows": -1}, {"rows": 4096}, cpu) == "rows -1 instead of at least 1"


def test_a_parameter_whose_default_is_off_may_be_off() -> None:
    assert impossible({**DEFAULT, "waves_per_eu": 0}, DEFAULT, resolve.resolve("mi300x").device) is None
