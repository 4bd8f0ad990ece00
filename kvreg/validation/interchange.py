"""Exchanging an `inline` int4 cache with vLLM's own Triton kernels: each side reads what the other has written.

vLLM itself is not needed, nor is any of its code kept here: five files of its wheel, in a folder that the caller
names, are loaded behind stand-ins for the modules that they import. Runs inside a worker of its own, since the
stand-ins take the name `vllm`.

Longer than its neighbours: the stand-ins for vLLM's modules are of no use elsewhere.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache as cached
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kvreg.core.devices import Device, Resolution
from kvreg.core.evidence import Evidence
from kvreg.core.layouts import INLINE
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.gate import check_attention, reference_of
from kvreg.gate.attention import row_errors
from kvreg.oracle import Reference
from kvreg.oracle.quantize import unpack_codes, unpack_scale
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.testing import Batch, CacheBytes, build
from kvreg.validation import calls
from kvreg.validation.work import device_of

MODE = Mode.INT4_PER_TOKEN_HEAD

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
"""Parts into which vLLM cuts a decode's context (facts/vllm.md section 4.3)."""


LEAST_EQUAL_CODES = 0.9
"""Writers may differ by one where a value lies between two codes (vLLM rounds the rotated row to bf16: 3 % seen at
head size 64); another order of nibbles or channels leaves a few percent of equal codes."""


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
class Peer:
    """vLLM's writer and reader."""

    writer: Any
    reader: Any

    def write(self, cache: CacheBytes, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Quantize rows into an inline cache; slots as many as rows."""
        self.writer.triton_reshape_and_cache_flash_per_token_head_quant(
            k, v, cache.k, cache.v, cache.k_scale, cache.v_scale, slots, PeerMode.INT4_PER_TOKEN_HEAD
        )

    def attend(self, batch: Batch, cache: CacheBytes) -> torch.Tensor:
        """Return vLLM's attention of a decode batch over an inline cache."""
        out = torch.full_like(batch.q, float("nan"))
        rows, heads, width = batch.q.shape[0], batch.q.shape[1], 1 << (batch.head_size - 1).bit_length()
        place = batch.q.device
        scratch = torch.empty(rows, heads, SEGMENTS, width, device=place)
        maximum, total = (torch.empty(rows, heads, SEGMENTS, device=place) for _ in range(2))
        one = torch.ones(1, device=place)
        self.reader.unified_attention(
            batch.q,
            cache.k,
            cache.v,
            out,
            batch.cu_q,
            max(batch.q_lens),
            batch.seq_lens,
            max(batch.contexts),
            batch.scale,
            True,
            (-1, -1),
            batch.page_table,
            0.0,
            None,
            one,
            one,
            max(1, 128 // batch.kv_heads),
            SEGMENTS,
            scratch,
            maximum,
            total,
            kv_quant_mode=PeerMode.INT4_PER_TOKEN_HEAD,
            k_scale_cache=cache.k_scale,
            v_scale_cache=cache.v_scale,
        )
        return out


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


def selection_for(device: Device, batch: Batch, mode: Mode, family: str) -> Selection:
    """Return what select would answer for a batch, its evidence left blank: this is where evidence comes from."""
    request = Request(
        device=device.key,
        mode=mode,
        head_size=batch.head_size,
        q_heads=int(batch.q.shape[1]),
        kv_heads=batch.kv_heads,
        page=batch.page,
        dtype=batch.dtype,
        batch=len(batch.contexts),
        context=max(batch.contexts),
        layout=batch.layout,
    )
    offered = [each for each in calls.variants_of(device.platform) if each.mode is mode and each.family == family]
    chosen = {}
    for variant in offered:
        blank = Evidence(
            trace="",
            variant=str(variant.id),
            op=variant.op,
            mode=mode.value,
            head_size=batch.head_size,
            device=device.key,
            arch=device.arch,
            kernel_hash="",
            numerics="none",
            build="none",
            speed="none",
            accuracy=variant.accuracy,
            max_rel_error=None,
            cosine=None,
            seeds=0,
            layouts=(),
        )
        config = dict(variant.default_config(device, request))
        chosen[variant.op] = Chosen(str(variant.id), variant.launcher, variant.accuracy, config, "default", blank)
    result = ModeResult(
        mode=mode,
        verdict="selected",
        layout=batch.layout,
        format=offered[0].format(device, batch.head_size),
        bytes_per_token_head=mode.bytes_per_token_head(batch.head_size),
        compression=mode.compression(batch.head_size),
        ops={op: chosen[op] for op in Op},
    )
    return Selection(Resolution(device, "key"), request, (result,))


def exchange(
    peer: str,
    device: str,
    place: str,
    head_size: int,
    group: int,
    kv_heads: int = 2,
    contexts: tuple[int, ...] = (1, 17, 64, 1024),
    inputs: tuple[str, ...] = ("normal", "channel30"),
    seeds: int = 3,
    family: str = "triton",
) -> dict[str, Any]:
    """Let each side read the other's inline cache of one decode batch, and compare.

    Returns e (worst over the batch, against the oracle over the same bytes) of each reader on each writer's cache, the
    distance of the two readers on one cache, and how many codes, scales and zero points the writers agree in. `ok`
    says that kvreg passes its gate on vLLM's bytes, that vLLM is as near to the oracle on kvreg's bytes as on its own,
    and that the codes mean the same.
    """
    on, kernels = device_of(device), load(Path(peer))
    # No padding rows: vLLM's writer starts a program for each row and reads a slot for each.
    batch = build(
        "decode",
        head_size=head_size,
        group=group,
        kv_heads=kv_heads,
        contexts=tuple(contexts),
        inputs=tuple(inputs),
        seeds=range(seeds),
        layout=INLINE,
        device=place,
        padding=0,
    )
    selection = selection_for(on, batch, MODE, family)
    theirs, ours = batch.cache(MODE), batch.cache(MODE)
    kernels.write(theirs, batch.k, batch.v, batch.slots)
    write(KVCache.from_buffer(selection, ours.storage), batch.k, batch.v, batch.slots)

    found: dict[str, Any] = {"head_size": head_size, "group": group, "sequences": len(batch.contexts)}
    failures: list[str] = []
    for writer, cache in (("vllm", theirs), ("kvreg", ours)):
        reference = reference_of(batch, cache)
        mine = _attend(selection, cache, batch)
        other = kernels.attend(batch, cache)
        report = check_attention(mine, reference, batch.q_lens, dtype=batch.q.dtype, labels=batch.labels)
        failures += [f"kvreg reads {writer}: {failure}" for failure in report.failures[:4]]
        found[f"kvreg_reads_{writer}"] = _worst(mine, reference)
        found[f"vllm_reads_{writer}"] = _worst(other, reference)
        found[f"readers_apart_on_{writer}"] = _apart(mine, other)
    bound = 2 * found["vllm_reads_vllm"] + 5e-3
    if not found["vllm_reads_kvreg"] <= bound:
        failures.append(f"vllm reads kvreg: required e at most {bound:.3g}, found {found['vllm_reads_kvreg']:.3g}")
    agreement = _agreement(batch, theirs, ours)
    if agreement["equal_codes"] < LEAST_EQUAL_CODES:
        failures.append(f"equal codes: required at least {LEAST_EQUAL_CODES}, found {agreement['equal_codes']:.3f}")
    return {**found, **agreement, "ok": not failures, "failures": failures}


def _attend(selection: Selection, cache: CacheBytes, batch: Batch) -> torch.Tensor:
    owned = KVCache.from_buffer(selection, cache.storage)
    made = plan(owned, batch.cu_q, batch.seq_lens, max_context=max(batch.contexts))
    out = torch.full_like(batch.q, float("nan"))
    attend(batch.q, owned, batch.page_table, batch.seq_lens, batch.cu_q, made, out=out, scale=batch.scale)
    return out


def _worst(out: torch.Tensor, reference: Reference) -> float:
    return float(row_errors(out, reference)[0].max())


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest relative L2 distance of two outputs' rows."""
    distance = torch.linalg.vector_norm(a.double() - b.double(), dim=-1)
    return float((distance / torch.linalg.vector_norm(b.double(), dim=-1)).nan_to_num(nan=float("inf")).max())


def _agreement(batch: Batch, theirs: CacheBytes, ours: CacheBytes) -> dict[str, float]:
    """Return the fractions of equal codes and zero points and the largest relative difference of a scale."""
    index = batch.slots.to(torch.int64)
    page, slot = index // batch.page, index % batch.page
    equal_codes, equal_zeros, scales = [], [], []
    for a, b in _sides(theirs, ours):
        equal_codes.append((unpack_codes(a[0][page, slot]) == unpack_codes(b[0][page, slot])).double().mean())
        (scale_a, zero_a), (scale_b, zero_b) = unpack_scale(a[1][page, slot]), unpack_scale(b[1][page, slot])
        equal_zeros.append((zero_a == zero_b).double().mean())
        scales.append((scale_a / scale_b - 1).abs().max())
    return {
        "equal_codes": float(torch.stack(equal_codes).mean()),
        "equal_zero_points": float(torch.stack(equal_zeros).mean()),
        "scale_difference": float(torch.stack(scales).max()),
    }


def _sides(*caches: CacheBytes) -> Iterator[tuple[tuple[torch.Tensor, torch.Tensor], ...]]:
    for side in ("k", "v"):
        yield tuple((getattr(cache, side), getattr(cache, f"{side}_scale")) for cache in caches)
