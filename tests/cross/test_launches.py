"""Launches as the product's launchers make them, recorded for cards that are not there."""

import json
import os
import subprocess
import sys

import pytest

from kvreg.core import registry, resolve
from kvreg.core.errors import Refused, UsageError
from kvreg.core.requests import Op, Request
from kvreg_triton.cross.launches import launches
from kvreg_triton.cross.specializations import Specialization, target_of

RECORD = """
import json, sys
from kvreg.core import registry, resolve
from kvreg.core.requests import Request
from kvreg_triton.cross.launches import launches

found = {}
for device, variant in json.loads(sys.argv[1]):
    card = resolve.resolve(device).device
    offered = [v for b in registry.backends() if b.platform == card.platform for v in b.variants()]
    (one,) = [v for v in offered if v.id.name == variant]
    request = Request(device=card.key, mode=one.mode, head_size=128)
    made = launches(one, card, request, one.default_config(card, request))
    found[f"{device} {variant}"] = {each.form: each.specialization.to_json() for each in made}
print(json.dumps(found))
"""
ASKED = [
    ("gfx942", "triton-int4-decode"),
    ("sm_86", "triton-int4-decode"),
    ("h200", "cuda-int4-decode"),
    ("h200", "cuda-int4-prefill"),
    ("h200", "cuda-none-prefill"),
    ("gfx942", "triton-int4-prefill"),
    ("gfx942", "rocm-int4-prefill"),
    ("gfx942", "triton-fp8h-write"),
    ("sm_89", "triton-fp8h-write"),
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Specialization]]:
    """What a process without the interpreter records: this one runs its kernels in it."""
    done = subprocess.run(
        [sys.executable, "-c", RECORD, json.dumps(ASKED)],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {
        name: {form: Specialization.from_json(each) for form, each in forms.items()} for name, forms in found.items()
    }


def within_2_gib(one: Specialization) -> list[str]:
    return sorted(name for name, known in one.attrs.items() if ["tt.pointer_range", 32] in known)


def test_decode_is_recorded_split_and_whole_with_its_reduction_and_for_large_caches_where_these_differ(recorded):
    amd, nvidia = recorded["gfx942 triton-int4-decode"], recorded["sm_86 triton-int4-decode"]

    assert set(nvidia) == {"attend split", "attend whole", "reduce"}
    assert set(amd) == {*nvidia, "attend split, wide", "attend whole, wide"}
    assert nvidia["attend split"].constexprs["SINGLE"] is False
    assert nvidia["attend whole"].constexprs["SINGLE"] is True


def test_equal_shares_are_recorded_where_a_launcher_has_them(recorded):
    own, shared = recorded["h200 cuda-int4-decode"], {"attend shares", "reduce shares"}

    assert set(own) == {*recorded["sm_86 triton-int4-decode"], *shared}
    assert {form: own[form].kernel.rpartition(":")[2] for form in own} == {
        "attend split": "attend",
        "attend whole": "attend",
        "reduce": "join",
        "attend shares": "attend_share",
        "reduce shares": "join_shares",
    }


def test_prefill_is_recorded_with_what_it_lays_out_before_and_with_what_it_leaves_to_pages(recorded):
    int4, plain = recorded["h200 cuda-int4-prefill"], recorded["h200 cuda-none-prefill"]

    assert {form: each.kernel for form, each in int4.items()} == {
        "find peaks": "kvreg_cuda.laying_out:find_peaks",
        "lay out": "kvreg_cuda.laying_out:lay_out",
        "attend": "kvreg_cuda.prefill:attend",
        "attend pages": "kvreg_cuda.prefill_left:attend_int4_left",
    }
    assert set(plain) == {*int4} - {"find peaks"}
    assert int4["attend"].signature["k_rows"].startswith("tensordesc<fp16[64, 128]")
    assert plain["attend"].signature["k_rows"].startswith("tensordesc<bf16[64, 128]")


def test_a_cache_over_2_gib_is_not_promised_to_lie_within_it(recorded):
    amd = recorded["gfx942 triton-int4-decode"]

    assert {"k", "v", "k_scale", "v_scale"} <= {*within_2_gib(amd["attend split"])}
    assert not {"k", "v", "k_scale", "v_scale"} & {*within_2_gib(amd["attend split, wide"])}
    assert "q" in within_2_gib(amd["attend split, wide"])
    assert not within_2_gib(recorded["sm_86 triton-int4-decode"]["attend split"])


def test_what_triton_sees_of_arguments_is_recorded(recorded):
    one = recorded["gfx942 triton-int4-decode"]["attend split"]

    assert ["tt.divisibility", 16] in one.attrs["k"]
    assert one.constexprs["ks_slot"] == 1  # scales of neighbouring tokens stand side by side in planar.2
    assert one.constexprs["COMPUTE"] == "dtype:fp16"
    assert one.options == {"num_warps": 2, "num_stages": 2, "enable_fp_fusion": True}


def test_fp8_rows_are_recorded_in_the_format_of_the_arch(recorded):
    assert recorded["gfx942 triton-fp8h-write"]["write"].signature["k"] == "*fp8e4b8"
    assert recorded["sm_89 triton-fp8h-write"]["write"].signature["k"] == "*fp8e4nv"


def test_the_rocm_prefill_is_the_shared_kernel_with_matrix_tiles_of_16(recorded):
    shared, own = recorded["gfx942 triton-int4-prefill"], recorded["gfx942 rocm-int4-prefill"]

    assert set(shared) == set(own)
    for form, one in own.items():
        assert one.kernel == shared[form].kernel == "kvreg_triton.attend_int4:attend"
        assert one.options == {**shared[form].options, "matrix_instr_nonkdim": 16}
        assert (one.attrs, one.constexprs) == (shared[form].attrs, shared[form].constexprs)


def test_a_specialization_survives_its_json(recorded):
    for forms in recorded.values():
        for one in forms.values():
            again = Specialization.from_json(json.loads(json.dumps(one.to_json())))
            assert (again, again.digest) == (one, one.digest)


def test_a_process_of_the_interpreter_records_nothing_and_says_so():
    device = resolve.resolve("sm_86").device
    backend = next(each for each in registry.backends() if each.platform == "cuda")
    variant = next(each for each in backend.variants() if each.op is Op.WRITE)
    request = Request(device=device.key, mode=variant.mode, head_size=128)

    with pytest.raises(UsageError, match="TRITON_INTERPRET: required 0 where kernels are compiled, found 1"):
        launches(variant, device, request, variant.default_config(device, request))


@pytest.mark.parametrize(
    ("device", "target"),
    [("mi300x", ("hip", "gfx942", 64)), ("arch:gfx1201", ("hip", "gfx1201", 32)), ("a10", ("cuda", 86, 32)),
     ("arch:sm_100", ("cuda", 100, 32))],
)  # fmt: skip
def test_a_device_and_its_arch_have_one_target(device, target):
    assert target_of(resolve.resolve(device).device) == target


def test_a_device_that_no_triton_compiles_for_is_refused():
    with pytest.raises(Refused, match="compile for cpu: required an arch that Triton compiles for"):
        target_of(resolve.resolve("cpu").device)
