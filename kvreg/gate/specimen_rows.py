"""Rows and their codes as a kernel makes and reads them, in fp32 with torch's own fp8 types, with one fault at a time.

Nothing is shared with the oracle: a butterfly and signs from torch's generator stand for the rotation.
"""

from __future__ import annotations

import torch

from kvreg.core.modes import ROTATION_SEED, Mode, rotation_block
from kvreg.oracle import Cache

_INF = float("inf")


def _signs(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    return 2 * torch.bernoulli(torch.full((n,), 0.5), generator=generator) - 1


def _hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    shape, width = x.shape, 1
    while width < block:
        pairs = x.reshape(-1, 2, width)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1)
        width *= 2
    return x.reshape(shape)


def forward(x: torch.Tensor) -> torch.Tensor:
    """Rotate rows."""
    block = rotation_block(x.shape[-1])
    return _hadamard(x * _signs(block).to(x.device).repeat(x.shape[-1] // block), block)


def backward(y: torch.Tensor) -> torch.Tensor:
    """Undo `forward` except for the division by the block."""
    block = rotation_block(y.shape[-1])
    return _hadamard(y, block) * _signs(block).to(y.device).repeat(y.shape[-1] // block)


def _largest(of: torch.dtype, fault: str | None) -> float:
    """Return the magnitude that writers scale a row's largest one to."""
    if of is torch.int8:
        return 128.0 if fault == "write_128" else 127.0
    return 224.0 if of is torch.float8_e4m3fnuz and fault != "write_448" else 448.0


def _rounded(y: torch.Tensor, of: torch.dtype, fault: str | None) -> torch.Tensor:
    """Return the codes of scaled values as uint8."""
    if of is torch.int8:
        codes = y.trunc() if fault == "write_truncated" else y.sign() * (y.abs() + 0.5).floor()
        return codes.clamp(-128, 127).nan_to_num(nan=0.0).to(torch.int8).view(torch.uint8)
    if fault == "write_fn":
        return y.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    largest = _largest(of, None)
    # Whether a conversion saturates is up to the hardware; without the clamp the fault is that it does not.
    kept = y.abs() <= largest if fault == "write_unclamped" else y.isfinite()
    y = torch.where(kept, y.clamp(-largest, largest), float("nan"))
    codes = y.to(of)
    bits = codes.view(torch.uint8)
    if fault == "write_truncated":
        bits = torch.where(codes.float().abs() > y.abs(), bits - 1, bits)  # the next smaller magnitude
    return bits


def quantize(
    cache: Cache, side: str, x: torch.Tensor, fault: str | None, k_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (bytes as uint8, stored scale or None) of fp32 rows; `k_scale`: K's stored scale while V is written."""
    of = cache.k.dtype
    if cache.mode is Mode.INT4_PER_TOKEN_HEAD:
        return _quantize_int4(x, side, fault, k_scale)
    if cache.mode is Mode.FP8_PER_TENSOR:
        assert cache.tensor_scales is not None
        given = cache.tensor_scales[0 if side == "k" or fault == "write_tensor_scale" else 1]
        return _rounded(x if fault == "write_unscaled" else x / given, of, fault), None
    top = x.amax(-1) if fault == "write_signed" else x.abs().amax(-1)
    if fault == "write_lanes":
        top = top.clamp(min=8)
    scale = (top / _largest(of, fault)).clamp(min=1e-6)
    scale = torch.where(scale < _INF, scale, float("nan"))
    if fault == "write_k_scale" and k_scale is not None:
        scale = k_scale
    codes = _rounded(x * (1 / scale)[..., None], of, fault)
    return codes, scale.roll(1, 0) if fault == "write_stale_scale" else scale


def _quantize_int4(
    x: torch.Tensor, side: str, fault: str | None, k_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if fault not in (f"{side}_unrotated", "kv_unrotated"):
        x = forward(x)
    low, high = x.amin(-1), x.amax(-1)
    if fault != "write_range":
        low, high = low.clamp(max=0), high.clamp(min=0)
    if fault == "write_lanes":
        high = high.clamp(min=8 * x.shape[-1] ** 0.5)
    scale = ((high - low) / 15).clamp(min=1e-6)
    if fault == "write_k_scale" and k_scale is not None:
        scale = (k_scale.view(torch.int32) & ~15).view(torch.float32)
    zero = (-low / scale + 0.5).floor().clamp(0, 15)
    codes = (x / scale[..., None] + zero[..., None] + 0.5).floor().clamp(0, 15)
    if fault == "write_zero":
        zero = (zero + 1).clamp(max=15)
    elif fault == "write_shifted_codes":
        zero, codes = (zero - 1).clamp(min=0), (codes - 1).clamp(min=0)
    elif fault == "write_stale_scale":
        scale = scale.roll(1, 0)
    even, odd = codes[..., 0::2].to(torch.uint8), codes[..., 1::2].to(torch.uint8)
    if fault == "write_nibbles":
        even, odd = odd, even
    stored = (scale.view(torch.int32) & ~15) | zero.to(torch.int32)
    return even + 16 * odd, stored.view(torch.float32)


def read(cache: Cache, side: str, page: torch.Tensor, slot: torch.Tensor, fault: str | None) -> torch.Tensor:
    """Return stored rows (n, t, kv_heads, head_size) fp32, rotated where they are; `page`, `slot`: (n, t)."""
    plane = cache.k if side == "k" else cache.v
    if cache.mode is Mode.NONE:
        return plane[page, slot].float()
    of, data = plane.dtype, plane.view(torch.uint8)[page, slot]
    if cache.mode is Mode.FP8_PER_TENSOR:
        assert cache.tensor_scales is not None
        given = cache.tensor_scales[0 if side == "k" or fault == "read_tensor_scale" else 1]
        values = _fp8(data, of, fault)
        return values if side == "k" and fault == "read_unscaled" else values * given
    scales = cache.k_scale if side == "k" or fault == "read_k_scale" else cache.v_scale
    assert scales is not None
    stored = scales[page, slot]
    if fault == "read_stale_scale":
        stored = torch.cat((stored[:, :1], stored[:, :-1]), 1)
    if cache.mode is Mode.INT4_PER_TOKEN_HEAD:
        return _read_int4(data, stored, fault)
    if cache.mode is Mode.INT8_PER_TOKEN_HEAD:
        codes = (data if fault == "read_unsigned" else data.view(torch.int8)).float()
    else:
        codes = _fp8(data, of, fault)
    return codes * stored[..., None]


def _fp8(data: torch.Tensor, of: torch.dtype, fault: str | None) -> torch.Tensor:
    return data.view(torch.float8_e4m3fn if fault == "read_fn" else of).float()


def _read_int4(data: torch.Tensor, stored: torch.Tensor, fault: str | None) -> torch.Tensor:
    bits = stored.view(torch.int32)
    zero, scale = (bits % 16).float(), ((bits >> 4) << 4).view(torch.float32)
    if fault == "read_zero":
        zero = zero + 1
    halves = (data % 16, data // 16)
    if fault == "read_nibbles":
        halves = (halves[1], halves[0])
    codes = torch.stack(halves, -1).flatten(-2).float()
    return (codes - zero[..., None]) * scale[..., None]
