"""Inputs and batches for checking kernels: seeds, hard rows, ragged lengths, page tables; and comparing attention."""

from kvreg.testing.batches import CONTEXTS, KINDS, Batch, Kind, Label, build
from kvreg.testing.caches import MARK_BYTE, NAN_BYTE, TENSOR_SCALES, CacheBytes, allocate
from kvreg.testing.closeness import assert_attention_close
from kvreg.testing.features import DRAWN, WINDOWS, FeatureFields, FeatureValues
from kvreg.testing.inputs import HARD, INPUTS

__all__ = [
    "CONTEXTS",
    "DRAWN",
    "HARD",
    "INPUTS",
    "KINDS",
    "MARK_BYTE",
    "NAN_BYTE",
    "TENSOR_SCALES",
    "WINDOWS",
    "Batch",
    "CacheBytes",
    "FeatureFields",
    "FeatureValues",
    "Kind",
    "Label",
    "allocate",
    "assert_attention_close",
    "build",
]
