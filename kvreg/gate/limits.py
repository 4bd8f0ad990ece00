"""Every limit of the gate, with where its number comes from. Those of one attention row are `row_limits`'."""

from __future__ import annotations

from kvreg.core.modes import Mode
from kvreg.core.requests import Accuracy
from kvreg.testing import HARD, row_limits
from kvreg.testing.row_limits import Limit

EXACT_NORMAL, EXACT_HARD = row_limits.EXACT_NORMAL, row_limits.EXACT_HARD
COSINE, COSINE_FLOOR = row_limits.COSINE, row_limits.COSINE_FLOOR
FAST_SHARE = Limit(
    0.1,
    "of the mode's quantization error",
    "class fast: the arithmetic may add a tenth of what the mode's own rounding has cost in the same run "
    "(about 1.4e-2 for int4)",
)
LSE = Limit(
    1.41,
    "times the limit of e",
    "two partial results of like weight that are merged by lse: weights off by sqrt(2) x / 4 where both are off by x, "
    "values that do not correlate, so the merged result is off by e = x / sqrt(2); an fp16 query at scores of 100 "
    "(one channel 30x in q and k) is off by 1.05e-2",
)
STEP = Limit(
    1.05,
    "quantization steps",
    "a code rounds by half a step and the integer zero point shifts the range by up to half a step more at its ends; "
    "0.05 for the fp32 rotation",
)
STEP_INT8 = Limit(
    0.51,
    "quantization steps",
    "a code rounds by half a step; 0.01 for a reciprocal and a product in fp32, off by 127 * 2^-23 of a step",
)
STEP_FP8 = Limit(
    0.51,
    "distances to the next fp8 value",
    "rounding to the nearest is off by half; 0.01 for a hardware conversion by way of fp16 (2^-8) and for products in "
    "fp32; products in bf16 (2^-6) and rounding towards zero (1) must fail",
)
CODE = Limit(
    1.0,
    "codes, or neighbours among the fp8 values",
    "halves may fall either way: writers round them away from zero or to even, by a quotient or by a reciprocal",
)
SCALE = Limit(
    1e-3,
    "relative error of a stored scale",
    "zero point bits change a scale by less than 15 * 2^-23 = 1.8e-6 and the fp32 rotation by about 1e-6; a scale of "
    "a range that leaves 0 out, of a maximum of 128 for 127, or that saw a neighbour's lane, is off by far more",
)
ZERO_POINT = Limit(
    0.52,
    "codes",
    "rounding moves the zero point by half a code; 0.02 for a scale that is off by its limit (15 * 1e-3)",
)
ROTATION_FP32 = Limit(1e-5, "relative L2 error of a row", "at most 9 additions deep in fp32: 9 * 2^-24 is 5e-7")
ROTATION_BF16 = Limit(
    4e-3, "relative L2 error of a row", "one rounding to bf16; published: 3.56e-3 at head size 128, 3.99e-3 at 96"
)

ALL = {
    "exact_normal": EXACT_NORMAL,
    "exact_hard": EXACT_HARD,
    "fast_share": FAST_SHARE,
    "cosine": COSINE,
    "cosine_floor": COSINE_FLOOR,
    "lse": LSE,
    "step": STEP,
    "step_int8": STEP_INT8,
    "step_fp8": STEP_FP8,
    "code": CODE,
    "scale": SCALE,
    "zero_point": ZERO_POINT,
    "rotation_fp32": ROTATION_FP32,
    "rotation_bf16": ROTATION_BF16,
}
"""Every limit by name."""


def step(mode: Mode) -> float:
    """Return how far a stored value may lie from its row's, in steps of the mode."""
    if mode.is_fp8:
        return STEP_FP8.value
    return (STEP_INT8 if mode is Mode.INT8_PER_TOKEN_HEAD else STEP).value


def rel_error(accuracy: Accuracy, input_kind: str, quantization_error: float | None = None) -> float:
    """Return the largest e that a class allows on an input kind.

    Class `fast` needs the mode's quantization error of the same run (`kvreg.gate.quantization_error`); it never asks
    more than `exact` does. Raises ValueError without it.
    """
    exact = EXACT_HARD.value if input_kind in HARD else EXACT_NORMAL.value
    if accuracy == "exact":
        return exact
    if quantization_error is None:
        raise ValueError(
            "class fast: required the mode's quantization error of this run, found none; measure it first"
        )
    return max(exact, FAST_SHARE.value * quantization_error)
