"""How each mode is stored on each architecture, known even where no variant serves it; a variant's own answer wins.

Sources: facts of vLLM 0.33 (`--kv-cache-dtype` words): int8 clamps to [-128, 127] with 127 as the scaled maximum,
fp8 is e4m3fn with 448 except on gfx94x (MI300, MI325), whose unit reads e4m3fnuz and whose writers use 224, not
the 240 that the type could hold, so that a value and its rounding never reach its NaN.
"""

from __future__ import annotations

from dataclasses import replace

from kvreg.core.devices import Device
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Format, Mode, rotation_block
from kvreg.core.variants import Variant

E4M3FN = "e4m3fn"
E4M3FNUZ = "e4m3fnuz"
QMAX = {E4M3FN: 448.0, E4M3FNUZ: 224.0}
"""Largest magnitude that a writer stores in each fp8 type."""

_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def fp8_type(device: Device) -> str:
    """Return the fp8 type that the device's caches hold: e4m3fnuz on gfx94x, e4m3fn everywhere else."""
    return E4M3FNUZ if device.arch.startswith("gfx94") else E4M3FN


def emulated_fp8(mode: Mode, device: Device) -> str | None:
    """Return the fp8 type that `device` converts in software for want of a unit; None where it has one.

    A device whose native types nobody has stated is not said to lack them.
    """
    needed = fp8_type(device)
    if not mode.is_fp8 or needed not in device.fp8_triton or needed in device.fp8_native:
        return None
    return needed if device.fp8_native or "fp8_native" in device.sources else None


def stored_dtype(dtype: str) -> str:
    """Return the torch name of a model dtype: bf16 -> bfloat16."""
    return _TORCH[dtype]


def default_format(mode: Mode, device: Device, head_size: int, layout: LayoutId, dtype: str) -> Format:
    """Return how `mode` stores a head of `head_size` on `device`; `dtype` (bf16, fp16, fp32) is what `none` keeps."""
    if mode is Mode.NONE:
        return Format(stored_dtype(dtype), None, None, None, str(layout), None)
    if mode is Mode.INT4_PER_TOKEN_HEAD:
        return Format("uint8", None, 15.0, rotation_block(head_size), str(layout), "even_low")
    if mode is Mode.INT8_PER_TOKEN_HEAD:
        return Format("int8", None, 127.0, None, str(layout), None)
    fp8 = fp8_type(device)
    return Format(f"float8_{fp8}", fp8, QMAX[fp8], None, str(layout), None)


def variant_format(variant: Variant, device: Device, head_size: int, layout: LayoutId, dtype: str) -> Format:
    """Return how `variant` stores its mode, with the request's layout and, for `none`, the model's dtype filled in."""
    described = variant.format(device, head_size)
    storage = stored_dtype(dtype) if variant.mode is Mode.NONE else described.storage
    return replace(described, layout_id=str(layout), storage=storage)
