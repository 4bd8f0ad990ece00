"""The KV quantization modes: what a cached row is made of, and how many bytes it takes.

Names and formats follow vLLM's `--kv-cache-dtype` words, so that a cache can be shared with it; the integer
ids are kvreg's own (vLLM 0.33 gives two modes the same integer).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ROTATION_SEED = 0x9E3779B9
"""Seed of the sign vector D, the one vLLM uses, so that both read each other's int4 caches."""

SCALE_BYTES = 4
"""One float32 scale for each (token, KV head) of K, and one of V, in the per-token-head modes."""


class Mode(StrEnum):
    """A KV quantization mode by its public name."""

    NONE = "none"
    FP8_PER_TENSOR = "fp8_per_tensor"
    INT8_PER_TOKEN_HEAD = "int8_per_token_head"
    FP8_PER_TOKEN_HEAD = "fp8_per_token_head"
    INT4_PER_TOKEN_HEAD = "int4_per_token_head"

    @property
    def id(self) -> int:
        """A stable integer for binary records; never reused."""
        return list(Mode).index(self) + 1

    @property
    def bits(self) -> int:
        """Bits of one stored value."""
        return {"none": 16, "int4_per_token_head": 4}.get(self.value, 8)

    @property
    def has_scales(self) -> bool:
        """Whether a row carries a scale of its own."""
        return self.value.endswith("_per_token_head")

    @property
    def is_fp8(self) -> bool:
        """Whether values are stored in an 8-bit floating-point format."""
        return self.value.startswith("fp8_")

    def row_bytes(self, head_size: int, dtype: str = "bf16") -> int:
        """Bytes of one row's values (one token, one KV head, K or V), without its scale.

        `none` stores the model's `dtype`, so that a float32 model (cpu, interpreter) takes twice the bytes there.
        """
        bits = 32 if self is Mode.NONE and dtype == "fp32" else self.bits
        return head_size * bits // 8

    def bytes_per_token_head(self, head_size: int, dtype: str = "bf16") -> int:
        """Bytes that one token of one KV head takes, K and V and their scales together."""
        return 2 * (self.row_bytes(head_size, dtype) + (SCALE_BYTES if self.has_scales else 0))

    def compression(self, head_size: int, dtype: str = "bf16") -> float:
        """How many times smaller than bf16 the cache is."""
        return Mode.NONE.bytes_per_token_head(head_size) / self.bytes_per_token_head(head_size, dtype)


def rotation_block(head_size: int) -> int:
    """Width of the Hadamard blocks of a head: the largest power of two that divides `head_size`."""
    return head_size & -head_size


@dataclass(frozen=True, slots=True)
class Format:
    """How the values of one mode are stored on one architecture, as `select` prints it."""

    storage: str
    """torch dtype of the stored values: uint8, int8, bfloat16, float8_e4m3fn, ..."""
    fp8: str | None
    """e4m3fn or e4m3fnuz, None where no fp8 is stored."""
    qmax: float | None
    """Largest quantized magnitude: 15 (int4 code), 127, 448 or 224; None for `none`."""
    rotation_block: int | None
    """Width of the Hadamard blocks; also the divisor that undoes the rotation. None where nothing is rotated."""
    layout_id: str
    """planar.1, inline.1, ..."""
    nibble_order: str | None
    """`even_low`: byte j holds channel 2j in its low nibble and 2j+1 in its high one."""
