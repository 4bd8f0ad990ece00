"""Inputs and batches for checking kernels: seeds, hard rows, ragged lengths, page tables."""

from kvreg.testing.batches import CONTEXTS, KINDS, Batch, Kind, Label, build
from kvreg.testing.caches import MARK_BYTE, NAN_BYTE, CacheBytes, allocate
from kvreg.testing.inputs import HARD, INPUTS

__all__ = [
    "CONTEXTS",
    "HARD",
    "INPUTS",
    "KINDS",
    "MARK_BYTE",
    "NAN_BYTE",
    "Batch",
    "CacheBytes",
    "Kind",
    "Label",
    "allocate",
    "build",
]
