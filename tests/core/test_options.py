"""Launch options: Triton drops unknown names in silence, so every name and value is judged before."""

from __future__ import annotations

import pytest

from kvreg.core import registry


def faults(platform: str, **options: object) -> tuple[str, ...]:
    (backend,) = [backend for backend in registry.backends() if backend.name == platform]
    return tuple(backend.validate_options(options))


@pytest.mark.parametrize(
    ("platform", "options"),
    [
        ("cuda", {"num_warps": 4, "num_stages": 3, "maxnreg": 128, "enable_fp_fusion": True}),
        ("rocm", {"num_warps": 16, "num_stages": 1, "waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 2}),
        ("xpu", {"num_warps": 32, "num_stages": 2, "grf_mode": "large", "threads_per_warp": 16}),
        ("cpu", {}),
    ],
)
def test_legal_options_pass(platform: str, options: dict[str, object]) -> None:
    assert faults(platform, **options) == ()


@pytest.mark.parametrize(
    ("platform", "options", "says"),
    [
        ("cuda", {"waves_per_eu": 2}, "waves_per_eu: required an option of this platform"),
        ("cuda", {"num_wraps": 4}, "did you mean num_warps?"),
        ("cuda", {"num_warps": 3}, "num_warps: required one of 1, 2, 4, 8, 16, 32, found 3"),
        ("cuda", {"num_warps": True}, "found True"),
        ("cuda", {"maxnreg": 300}, "an integer from 24 to 255, found 300"),
        ("rocm", {"num_warps": 32}, "found 32"),
        ("rocm", {"matrix_instr_nonkdim": 4}, "found 4"),
        ("xpu", {"grf_mode": "256"}, "found '256'; take a listed value: large is its name here"),
        ("xpu", {"grf_mode": "128"}, "small is its name here"),
        ("xpu", {"grf_mode": "large", "num_warps": 64}, "at most 32 with grf_mode=large"),
        ("cpu", {"num_warps": 4}, "takes no launch option"),
    ],
)
def test_what_the_compiler_would_drop_or_refuse_is_one_line(
    platform: str, options: dict[str, object], says: str
) -> None:
    (line,) = faults(platform, **options)

    assert says in line


def test_every_option_of_every_space_is_legal_and_passed_on_by_the_launcher() -> None:
    from kvreg.core.requests import Request

    for backend in registry.backends():
        devices = backend.devices()
        for variant in backend.variants():
            for device in devices:
                request = Request(device.key, variant.mode, 128)
                known = backend.validate_options
                space = backend.space(variant, device, request)
                # What the compiler does not know is a block size, which the variant's default config has too.
                options = {name for name in space if not known({name: space[name][0]})}
                assert options <= set(variant.options), (device.key, variant.id)
                assert set(space) - options <= set(variant.default_config(device, request)), (device.key, variant.id)
                for name in options:
                    for value in space[name]:
                        assert tuple(known({name: value})) == (), (device.key, name, value)
