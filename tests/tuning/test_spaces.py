"""The spaces of the platforms, and what is pruned before any trial."""

from __future__ import annotations

import pytest

from kvreg.core import resolve
from kvreg.core.buckets import Bucket
from kvreg.core.requests import Op
from kvreg_tuning.effort import EFFORTS
from kvreg_tuning.spaces import Space, enumerate_configs, space_of
from kvreg_tuning.subjects import Subject, offered, text_of


def space(
    device: str, op: str, buckets: tuple[str, ...], *, head_size: int = 128, mode: str = "int4_per_token_head"
) -> Space:
    on = resolve.resolve(device).device
    family = "torch" if device == "cpu" else "triton"
    variant = f"{family}-{mode.partition('_')[0]}-{op}@1"
    subject = Subject(device, variant, op, mode, head_size, 4, 8)
    found = offered(on.platform)[variant]
    return space_of(subject, *found, on, tuple(map(Bucket.parse, buckets)))


DECODE = ("b1-c8192", "b32-c8192")


def test_one_warp_is_in_the_space() -> None:
    assert space("h200", "decode", DECODE).candidates.knobs["num_warps"][0] == 1


def test_the_default_is_the_first_config_and_every_config_has_all_its_parameters() -> None:
    found = space("h200", "decode", DECODE).candidates
    default = dict(offered("cuda")["triton-int4-decode@1"][1].default_config(
        resolve.resolve("h200").device, space("h200", "decode", DECODE).subject.request(Bucket(1, 8192))
    ))  # fmt: skip

    assert found.configs[0] == default
    assert all(set(config) == set(default) for config in found.configs)
    assert len({text_of(config) for config in found.configs}) == len(found.configs)


def test_what_only_batch_invariance_reads_is_in_no_space() -> None:
    for device in ("h200", "mi300x", "b580"):
        assert "chunk" not in space(device, "decode", DECODE).candidates.knobs


@pytest.mark.parametrize(
    ("device", "op", "buckets", "says"),
    [
        ("rtx4090", "prefill", ("b1-c4096",), "registers a thread for the result alone, at most 255"),
        ("mi300x", "decode", DECODE, "B of shared memory, at most 65536 B"),
        ("h200", "write", ("t32",), "some have none"),
        ("cpu", "write", ("t32",), "a step of 64 holds all 32 token rows, as one of 32 does"),
        ("cpu", "prefill", ("b1-c512",), "holds all 1048576 scores of a head"),
    ],
)
def test_a_config_is_pruned_with_its_reason(device: str, op: str, buckets: tuple[str, ...], says: str) -> None:
    shape = {} if device in ("cpu", "h200") else {"head_size": 256, "mode": "none"}
    found = space(device, op, buckets, **shape).candidates  # type: ignore[arg-type]

    assert any(says in reason for _, _, reason in found.pruned), found.pruned[:3]


def test_a_config_that_is_pruned_in_one_bucket_is_tried_in_the_other() -> None:
    found = space("cpu", "write", ("t32", "t1024")).candidates

    assert {"rows": 512} in [dict(config) for config in found.configs]
    assert ({"rows": 512}, "t32") in [(dict(config), bucket) for config, bucket, _ in found.pruned]
    assert {"rows": 4096} not in [dict(config) for config in found.configs]


def test_the_cpu_s_decode_has_nothing_to_tune() -> None:
    found = space("cpu", "decode", ("b1-c1024",)).candidates

    assert found.knobs == {}
    assert len(found.configs) == 1


@pytest.mark.parametrize("device", ["v100", "rtx3090", "h200", "mi300x", "rx7900xtx", "b580"])
def test_every_variant_has_a_space_of_which_most_is_kept(device: str) -> None:
    buckets = {Op.WRITE: (Bucket(32, 0),), Op.DECODE: (Bucket(32, 8192),), Op.PREFILL: (Bucket(4, 4096),)}
    on = resolve.resolve(device).device
    for name, (backend, variant) in offered(on.platform).items():
        of = Subject(on.key, name, variant.op, variant.mode, 128, 4, 8)
        found = enumerate_configs(of, backend, variant, on, buckets[variant.op])

        assert 8 <= len(found.configs) <= 800, name


OWN = "cuda-int4-decode@1"


def own_space(
    head_size: int, group: int, *, bucket: str = "b32-c8192", name: str = OWN, device: str = "h200"
) -> Space:
    on = resolve.resolve(device).device
    backend, variant = offered("cuda")[name]
    subject = Subject(device, name, "decode", variant.mode.value, head_size, group, 8)
    return space_of(subject, backend, variant, on, (Bucket.parse(bucket),), "ab" * 32)


@pytest.mark.parametrize("name", [OWN, "cuda-int8-decode@1"])
@pytest.mark.parametrize(
    ("head_size", "group"), [(64, 4), (80, 1), (96, 1), (128, 4), (128, 7), (128, 8), (192, 4), (256, 2)]
)
def test_the_h200_s_own_decode_has_a_space_that_is_tried_as_a_whole(name: str, head_size: int, group: int) -> None:
    found = own_space(head_size, group, name=name).candidates

    assert 15 <= len(found.configs) - 1 <= EFFORTS["normal"].trials


@pytest.mark.parametrize(
    ("head_size", "known"),
    [
        (128, {"tile": 64, "num_stages": 5, "maxnreg": 208, "programs_per_unit": 4, "num_warps": 1}),  # 1 x 131072
        (128, {"tile": 32, "num_stages": 5, "maxnreg": 168, "programs_per_unit": 12, "num_warps": 1}),  # shares
        (128, {"tile": 64, "num_stages": 5, "maxnreg": 168, "programs_per_unit": 4, "num_warps": 2}),  # 1 x 4096
        (64, {"tile": 64, "num_stages": 5, "maxnreg": 144, "programs_per_unit": 8, "num_warps": 1}),
    ],
)
def test_what_grids_on_an_h200_found_good_is_in_the_space(head_size: int, known: dict[str, int]) -> None:
    configs = own_space(head_size, 4).candidates.configs

    assert any(known.items() <= config.items() for config in configs)


@pytest.mark.parametrize(
    ("head_size", "says"),
    [
        (128, "181 registers a thread are wanted, so that 208 are no bound"),
        (128, "211 registers a thread are wanted, so that 144 spill"),
        (128, "12 programs at once take 70656 registers, at most 65536"),
        (256, "8 programs at once take 262144 B of shared memory, at most 233472 B"),
    ],
    ids=["no bound", "spills", "registers", "shared memory"],
)
def test_what_cannot_be_good_is_left_out_of_it_by_its_reason(head_size: int, says: str) -> None:
    assert says in {reason for _, _, reason in own_space(head_size, 4).candidates.pruned}


def test_a_bound_that_is_none_makes_no_second_default() -> None:
    found = own_space(192, 4).candidates
    default = found.configs[0]

    assert "maxnreg" not in default
    assert {**default, "maxnreg": 255} not in [dict(config) for config in found.configs]
