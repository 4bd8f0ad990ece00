"""The interchange with another engine's kernels, tried on stand-ins that follow or break the shared format.

The stand-ins have the file and function names of the engine and are written with the oracle; the engine's own files
are tried by `ci/gpu --peer`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreg.bench.vllm_kernels import FILES
from kvreg_tuning.worker import Worker

WRITER = """
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.v1.kv_cache_interface import KVQuantMode, is_quantized_kv_cache
from vllm.model_executor.layers.quantization.utils.quant_utils import FP8_DTYPE, get_fp8_min_max
from kvreg.oracle.quantize import pack_codes, pack_scale, quantize_int4
from kvreg.oracle.rotation import rotate

def triton_reshape_and_cache_flash_per_token_head_quant(k, v, kc, vc, ks, vs, slots, mode):
    assert mode == KVQuantMode.INT4_PER_TOKEN_HEAD
    page = slots // kc.shape[1]
    slot = slots % kc.shape[1]
    for rows, data, scales in ((k, kc, ks), (v, vc, vs)):
        codes, scale, zero = quantize_int4(rotate(rows, rows.shape[-1]))
        packed = pack_codes(codes)
        data[page, slot] = SWAP(packed)
        scales[page, slot] = pack_scale(scale, zero)
"""
READER = """
import torch
import vllm.envs as envs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.ops.triton_attention_helpers import helper
from kvreg.core.modes import Mode
from kvreg.oracle import over_cache

class Seen:
    pass

logger = init_logger("x")
logger.info("said")
assert not current_platform.is_rocm()
assert not envs.VLLM_BATCH_INVARIANT

def unified_attention(q, k, v, out, cu, max_q, seqused, max_k, scale, causal, window, table, softcap, *rest,
                      kv_quant_mode, k_scale_cache, v_scale_cache):
    cache = Seen()
    cache.mode, cache.head_size, cache.kv_heads = Mode.INT4_PER_TOKEN_HEAD, q.shape[2], k.shape[2]
    cache.page, cache.k, cache.v, cache.k_scale, cache.v_scale = k.shape[1], k, v, k_scale_cache, v_scale_cache
    found = over_cache(q, cache, table, tuple(seqused.tolist()), tuple(cu.tolist()), scale=scale)
    out.copy_(found.out * FACTOR)
"""


def peer(folder: Path, *, swap: str = "lambda x: x", factor: float = 1.0) -> Path:
    folder.mkdir()
    texts = dict.fromkeys(FILES.values(), "")
    texts["triton_attention_helpers.py"] = "def helper(): pass\n"
    texts["triton_reshape_and_cache_flash.py"] = f"SWAP = {swap}\n{WRITER}"
    texts["triton_unified_attention.py"] = f"FACTOR = {factor}\n{READER}"
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def exchange(folder: Path) -> dict:
    arguments = {"peer": str(folder), "device": "cpu", "place": "cpu", "head_size": 96, "group": 4, "family": "torch"}
    arguments |= {"contexts": [1, 17], "inputs": ["normal"], "seeds": 1}
    with Worker() as worker:
        outcome = worker.run("kvreg.validation.interchange:exchange", arguments, timeout_s=120)
    assert outcome.status == "ok", outcome.traceback
    return outcome.value


def test_two_sides_that_agree_read_each_other(tmp_path: Path) -> None:
    found = exchange(peer(tmp_path / "peer"))

    assert found["ok"], found["failures"]
    assert found["vllm_reads_kvreg"] < 3e-3  # the output's own rounding
    assert found["kvreg_reads_vllm"] < 5e-3
    assert found["equal_codes"] > 0.99
    assert found["equal_zero_points"] > 0.99
    assert found["scale_difference"] < 1e-4


def test_another_reader_that_is_wrong_on_our_bytes_fails_the_exchange(tmp_path: Path) -> None:
    folder = peer(tmp_path / "peer")
    reader = folder / "triton_unified_attention.py"
    reader.write_text(reader.read_text().replace("* FACTOR)", "* FACTOR)\n    global CALLS\n    CALLS += 1\n"
                      "    if CALLS == 2: out.mul_(0.9)\n") + "\nCALLS = 0\n")  # fmt: skip

    found = exchange(folder)

    assert not found["ok"]
    assert "vllm reads kvreg: required e at most" in found["failures"][0]


@pytest.mark.parametrize("missing", list(FILES.values()))
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    folder = peer(tmp_path / "peer")
    (folder / missing).unlink()
    arguments = {"peer": str(folder), "device": "cpu", "place": "cpu", "head_size": 96, "group": 4}

    from kvreg.bench.vllm_kernels import load

    with pytest.raises(FileNotFoundError, match=missing):
        load(Path(arguments["peer"]))


def test_swapped_nibbles_fail_though_both_readers_read_the_same_bytes(tmp_path: Path) -> None:
    found = exchange(peer(tmp_path / "peer", swap="lambda x: (x >> 4) | (x << 4)"))

    assert not found["ok"]
    assert "equal codes" in found["failures"][-1]
