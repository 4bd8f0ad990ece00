"""vLLM's own Triton kernels, without vLLM.

vLLM itself is not needed, nor is any of its code kept here: five files of its wheel, in a folder that the caller
names, are loaded behind stand-ins for the modules that they import. The stand-ins take the name `vllm`, so this
belongs into a process of its own.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as cached
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kvreg.testing import CacheBytes

_OPS = "vllm.v1.attention.ops"
FILES = {
    "vllm.utils.math_utils": "math_utils.py",
    f"{_OPS}.triton_attention_helpers": "triton_attention_helpers.py",
    f"{_OPS}.triton_unified_attention": "triton_unified_attention.py",
    f"{_OPS}.int4_per_token_head": "int4_per_token_head.py",
    f"{_OPS}.triton_reshape_and_cache_flash": "triton_reshape_and_cache_flash.py",
}
"""Modules of vLLM 0.33.0 that are loaded, in the order of their imports."""

SEGMENTS = 16
"""Parts into which the Triton backend of vLLM 0.33 cuts a decode's context."""
SCRATCH_ROWS = 1024
"""Query rows that there is scratch memory for: more than any batch of decodes or drafts has. With fewer than a call's
rows, vLLM does not split, which it does not in a prefill anyhow."""


class PeerMode(enum.IntEnum):
    """vLLM's KVQuantMode as its kernels compare it."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class _Platform:
    """Answers the questions that the kernels ask at import and launch; every other one with no."""

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn

    def is_cuda(self) -> bool:
        return bool(torch.cuda.is_available())

    def has_device_capability(self, *_: object) -> bool:
        return bool(torch.cuda.is_available())

    def __getattr__(self, _: str) -> Callable[..., bool]:
        return lambda *arguments, **named: False


class _Quiet:
    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *arguments, **named: None


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One causal attention call over an inline cache; tensors as kvreg.attend takes them."""

    q: torch.Tensor
    cache: CacheBytes
    out: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_q: torch.Tensor
    most_queries: int
    """Of a sequence."""
    longest: int
    """Most tokens of a sequence."""
    scale: float


@dataclass(frozen=True, slots=True)
class Peer:
    """vLLM's writer and reader."""

    writer: Any
    reader: Any

    def write(self, cache: CacheBytes, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Quantize rows into an inline cache of a mode with row scales; slots as many as rows."""
        self.writer.triton_reshape_and_cache_flash_per_token_head_quant(
            k, v, cache.k, cache.v, cache.k_scale, cache.v_scale, slots, PeerMode[cache.mode.name]
        )

    def attention(self, asked: PeerCall) -> Callable[[], None]:
        """Return a call that fills `asked.out`; its scratch memory is made here, once."""
        queries, heads, size = asked.q.shape
        rows, place, width = min(queries, SCRATCH_ROWS), asked.q.device, 1 << (size - 1).bit_length()
        cache = asked.cache
        scratch = torch.empty(rows, heads, SEGMENTS, width, device=place)
        maximum, total = (torch.empty(rows, heads, SEGMENTS, device=place) for _ in range(2))
        one = torch.ones(1, device=place)
        arguments = (
            asked.q, cache.k, cache.v, asked.out, asked.cu_q, asked.most_queries, asked.seq_lens, asked.longest,
            asked.scale, True, (-1, -1), asked.page_table, 0.0, None, one, one, max(1, 128 // cache.kv_heads),
            SEGMENTS, scratch, maximum, total,
        )  # fmt: skip
        quantized = {"k_scale_cache": cache.k_scale, "v_scale_cache": cache.v_scale}
        return lambda: self.reader.unified_attention(*arguments, kv_quant_mode=PeerMode[cache.mode.name], **quantized)


@cached
def load(folder: Path) -> Peer:
    """Return vLLM's kernels from the five files in `folder`; raises FileNotFoundError for a missing one."""
    for file in FILES.values():
        if not (folder / file).is_file():
            raise FileNotFoundError(f"peer folder {folder}: required {', '.join(FILES.values())}, found no {file}")
    import triton
    import triton.language as tl

    quant = "vllm.model_executor.layers.quantization.utils.quant_utils"
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda name: _Quiet()},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {
            "KVQuantMode": PeerMode,
            "is_quantized_kv_cache": lambda word: word not in ("auto", "bfloat16", "float16"),
        },
        quant: {"get_fp8_min_max": lambda: (-448.0, 448.0), "FP8_DTYPE": torch.float8_e4m3fn},
    }
    for name, content in stand_ins.items():
        _module(name).__dict__.update(content)
    for name, file in FILES.items():
        _execute(name, folder / file)
    return Peer(sys.modules[f"{_OPS}.triton_reshape_and_cache_flash"], sys.modules[f"{_OPS}.triton_unified_attention"])


def _module(name: str) -> ModuleType:
    """Return the module of a name, made empty where it is missing, with every package above it."""
    if name not in sys.modules:
        made = ModuleType(name)
        made.__path__ = []  # so that a missing submodule is an ImportError, which the kernels expect of some
        sys.modules[name] = made
        above, _, leaf = name.rpartition(".")
        if above:
            setattr(_module(above), leaf, made)
    return sys.modules[name]


def _execute(name: str, file: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    above, _, leaf = name.rpartition(".")
    setattr(_module(above), leaf, module)
    spec.loader.exec_module(module)
