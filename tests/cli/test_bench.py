"""`kvreg bench` as a command: answers, files, exit codes. The device is the host's processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvreg.bench.vllm_kernels import FILES
from kvreg.cli import bench_asked, bench_step
from kvreg.cli.bench_asked import Asked
from kvreg.core.errors import Refused
from kvreg.validation import machine as machines

SMALL = ("--batch", "2", "--context", "33", "--q-heads", "4", "--kv-heads", "2", "--head-size", "64")
STAND_IN = {
    "math_utils.py": """
import os
from kvreg.core.modes import Mode

class Cache:
    def __init__(self, mode, k, v, k_scale, v_scale, head_size):
        if mode.name == "INT8_PER_TOKEN_HEAD":
            os.abort()
        self.mode, self.head_size, self.kv_heads = Mode[mode.name], head_size, k.shape[2]
        self.page, self.k, self.v, self.k_scale, self.v_scale = k.shape[1], k, v, k_scale, v_scale
        self.tensor_scales = None
""",
    "triton_reshape_and_cache_flash.py": """
from kvreg.oracle import store
from vllm.utils.math_utils import Cache

def triton_reshape_and_cache_flash_per_token_head_quant(k, v, kc, vc, ks, vs, slots, mode):
    store(Cache(mode, kc, vc, ks, vs, k.shape[2]), k, v, slots)
""",
    "triton_unified_attention.py": """
from kvreg.oracle import over_cache
from vllm.utils.math_utils import Cache

def unified_attention(q, k, v, out, cu, max_q, seqused, max_k, scale, causal, window, table, softcap, *rest,
                      kv_quant_mode, k_scale_cache, v_scale_cache):
    cache = Cache(kv_quant_mode, k, v, k_scale_cache, v_scale_cache, q.shape[2])
    out.copy_(over_cache(q, cache, table, tuple(seqused.tolist()), tuple(cu.tolist()), scale=scale).out)
""",
}
"""Files with the names and functions of vLLM's, written with the oracle: right, but in int8 the process ends."""


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    folder = tmp_path / "peer"
    folder.mkdir()
    for name in FILES.values():
        (folder / name).write_text(STAND_IN.get(name, ""))
    return folder


def test_a_peer_that_crashes_is_a_row_and_the_others_have_their_times(here: Callable[..., object], peer: Path) -> None:
    modes = ("--mode", "int8_per_token_head", "--mode", "int4_per_token_head", "--all-variants")

    done = here("bench", "--device", "cpu", "--op", "decode", *SMALL, *modes, "--peer", str(peer), "--json")

    assert done.code == 0, done.err
    (shape,) = done.document["shapes"]
    rows = {row["kernel"]: row for row in shape["rows"]}
    crashed = rows.pop("vLLM int8_per_token_head")
    assert (crashed["status"], crashed["us"]) == ("crash", None)
    assert "SIGABRT" in crashed["detail"]
    assert set(rows) == {
        "torch-none-decode@1",
        "SDPA bf16, dense",
        "vLLM bf16",
        "torch-int4-decode@1",
        "vLLM int4_per_token_head",
        "torch-int8-decode@1",
    }
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert all(row["e"] < 5e-3 for row in rows.values())
    bf16 = {name: row["us"] for name, row in rows.items() if row["mode"] == "none"}
    assert shape["best_bf16"] == {"kernel": min(bf16, key=bf16.get), "us": min(bf16.values())}
    assert rows["torch-int4-decode@1"]["ratio"] == min(bf16.values()) / rows["torch-int4-decode@1"]["us"]
    assert done.document["read_bandwidth"] > 1e8
    assert "its kernels are taken one by one" in done.err


def test_what_select_refuses_is_not_measured_and_a_remedy_stands_beside_the_reason(
    here: Callable[..., object],
) -> None:
    done = here("bench", "--device", "cpu", "--op", "write", *SMALL[:-1], "48", "--mode", "int4_per_token_head")

    assert done.code == 3
    assert done.err.startswith(
        "kvreg: bench: int4_per_token_head on cpu: evidence: required a trace for head size 48 on"
    )
    assert "--all-variants" in done.err


INT8, INT4 = ("--mode", "int8_per_token_head"), ("--mode", "int4_per_token_head")


@pytest.mark.parametrize(
    "asked",
    [(*SMALL, "--op", "decode"), ("--pays", "--batch", "1", "--context", "256", "--head-size", "64")],
    ids=("shape", "pays"),
)
def test_bf16_alone_is_no_answer_to_a_mode_that_is_refused(
    here: Callable[..., object], asked: tuple[str, ...]
) -> None:
    done = here("bench", "--device", "cpu", *asked, *INT8, "--json")

    assert done.code == 3
    # Nothing was measured: the reason is that of the mode, and not of one that nobody named.
    assert done.document["error"]["message"].startswith(
        "bench: int8_per_token_head on cpu: evidence: required a trace"
    )
    assert done.err == ""


def test_a_mode_that_is_refused_beside_one_that_is_measured_stands_with_its_reason() -> None:
    heads = {"q_heads": 4, "kv_heads": 2, "head_sizes": (64,)}
    of = Asked(modes=(INT8[1], INT4[1]), works=("write",), batch=2, context=33, **heads)

    (planned,) = bench_asked.plan(of, machines.machine_for("cpu"), bench_asked.modes_of(of))

    assert [each.mode for each in planned.subjects] == ["none", "int4_per_token_head"]
    assert [each.mode for each in planned.refusals] == ["int8_per_token_head"]


def test_a_step_holds_the_layers_and_tokens_that_flags_name_and_wants_a_mode_that_is_served() -> None:
    machine = machines.machine_for("cpu")
    of = Asked(modes=(INT4[1],), batch=2, context=33, step="llama3-8b", layers=3)

    shape, planned = bench_step.plan(of, machine, bench_asked.modes_of(of))

    assert (shape.model.layers, shape.batch, shape.context, shape.page) == (3, 2, 33, 16)
    assert str(shape) == "3 of 32 layers of llama3-8b step 2 x 33"
    assert [each.name for each in planned.subjects] == [
        "torch-none-decode@1",
        "torch-int4-decode@1",
        "SDPA bf16, dense",
    ]
    of = Asked(modes=(INT8[1],), step="llama3-8b")
    with pytest.raises(Refused, match="bench: int8_per_token_head on cpu: evidence"):
        bench_step.plan(of, machine, bench_asked.modes_of(of))


def test_a_plot_of_a_kind_that_nobody_draws_is_one_line_before_any_work(
    here: Callable[..., object], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")

    done = here("bench", "--device", "cpu", "--plot", str(tmp_path / "a.foo"), "--json")

    assert done.code == 2
    assert "found .foo; name a .png or .svg" in done.document["error"]["message"]


def test_a_plot_without_matplotlib_is_one_line_before_any_work(
    here: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    done = here("bench", "--device", "cpu", "--plot", str(tmp_path / "a.png"))

    assert done.code == 2
    assert done.err == "kvreg: --plot: required matplotlib, found none; pip install 'kvreg[bench]'\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ragged", "5"), "17:131072x64"),
        (("--q-heads", "9", "--kv-heads", "2"), "a multiple of the 2 KV heads"),
        (("--mode", "int5"), "required one of none"),
        (("--shape", "gpt9"), "words of one of: phi3-mini"),
        (("--shape", "llama", "--batch", "2"), "required the table alone"),
        (("--pays", "--op", "write"), "required decodes of equal length"),
        (("--pays", "--mode", "none"), "required a quantized mode"),
        (("--pays", "--context", "5"), "at least 64 with --pays"),
        (("--ragged", "17:64x2", "--batch", "4"), "--ragged: required its own sequences and contexts, found --batch"),
        (("--ragged", "17:64x2", "--context", "4"), "found --context; leave one out"),
        (("--host", "--pays"), "found --pays"),
        (("--chunk", "4"), "--chunk: required --op prefill alone beside it, found none"),
        (("--chunk", "4", "--op", "prefill", "--op", "write"), "found --op prefill --op write; take that, or"),
        (("--chunk", "65", "--op", "prefill", "--op", "prefill", "--context", "64"), "at most 64 tokens, the longest"),
        (("--ragged", "17:64x1"), "of 2 to"),
        (("--step", "phi3-mini", "--chunk", "4"), "found --chunk"),
        (
            ("--host", "--op", "prefill"),
            "--op: required one of decode, write without flags",
        ),
        (("--layers", "2"), "--layers: required --step beside it"),
        (("--step", "gpt9"), "phi3-mini, llama3-8b or a folder with a config.json, found 'gpt9'"),
        (("--step", "phi3-mini", "--head-size", "64", "--pays"), "found --head-size --pays; leave one out"),
        (("--step", "phi3-mini", "--layers", "33"), "at most the 32 of phi3-mini, found 33"),
    ],
)
def test_wrong_words_are_one_line_and_no_work(
    here: Callable[..., object], arguments: tuple[str, ...], words: str
) -> None:
    done = here("bench", "--device", "cpu", *arguments)

    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_peer_folder_that_lacks_a_file_is_an_error_that_names_it(here: Callable[..., object], peer: Path) -> None:
    (peer / "int4_per_token_head.py").unlink()

    done = here("bench", "--device", "cpu", "--peer", str(peer))

    assert done.code == 2
    assert "found no int4_per_token_head.py; docs/bench.md" in done.err


def test_a_card_that_is_absent_ends_with_6(here: Callable[..., object]) -> None:
    done = here("bench", "--device", "mi300x", "--json")

    assert done.code == 6
    assert done.document["error"]["message"].startswith("bench on mi300x: required that card in this machine")
    assert "--interpreter" not in done.document["error"]["message"]
