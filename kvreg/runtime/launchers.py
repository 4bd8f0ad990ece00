"""What the runtime hands to a variant's launcher: tensors and strides, already checked.

A launcher is the object that `Variant.launcher` names. It may assume that shapes, dtypes and devices fit
(`kvreg.runtime.checks` has seen to it), launches on the tensors' device and never waits for it. Kernels of Triton that
are its attributes are launched through `kvreg.runtime.direct`. One whose whole effect is to launch these, decided by
shapes, strides, dtypes, devices and plain values alone, may say `only_submits = True`: calls that equal an earlier one
are then launched without it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from kvreg.core.errors import DeviceUnavailable, UsageError, wrong
from kvreg.core.modes import Mode


@dataclass(frozen=True, slots=True)
class CacheView:
    """One layer's cache as strided views; nothing is derived from the head size.

    `k`, `v`: (pages, page, kv_heads, row) with row = head_size values (none, int8, fp8) or head_size // 2 bytes
    (int4, uint8); the strides are arbitrary but for the last axis, which has 1. V of int4 alone may have another there
    if its slots have 1 (tokens adjacent). `k_scale`, `v_scale`: (pages, page,
    kv_heads) float32, or None where the mode has no row scales.
    """

    mode: Mode
    head_size: int
    kv_heads: int
    page: int
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    alignment: int
    """Largest power of two (at most 16) that divides the address and every byte stride of K and V but that of 1."""
    tensor_scales: torch.Tensor | None = None
    """(2,) float32 on the cache's device: the scales of K and V in fp8_per_tensor; None in every other mode."""


@dataclass(frozen=True, slots=True)
class Features:
    """What changes which keys a query sees, and how they count. Each one is declared by variants that take it.

    With p the position of a query row and t that of a key, key t of a sequence is seen where t < seq_len and
    (causal: t <= p) and (window: p - t < window, and t - p < window where not causal), or where some prefix range
    holds both p and t. A score becomes: dot * scale, softcap, mask, alibi.
    """

    causal: bool | torch.Tensor = True
    """One bool for all, or (n_seqs,) torch.bool on the device: one for each sequence."""
    window: int | None = None
    """Keys that a query sees behind it, its own included."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: torch.Tensor | None = None
    """(q_heads,) float32: a further logit of each head that takes weight and adds no value."""
    alibi: torch.Tensor | None = None
    """(q_heads,) float32 slopes: slope * (t - p) is added to the score."""
    prefix_ranges: torch.Tensor | None = None
    """(n_seqs, ranges, 2) int32: [begin, end) positions that see each other both ways; begin >= end is no range. None
    ends behind its sequence."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How decode cuts each context; made once a step, shared by all layers."""

    splits: int
    """Programs for each (query token, KV head)."""
    chunk: int
    """Tokens of one split where fixed (batch invariant), 0 where each context is cut into `splits` equal parts."""
    partial_out: torch.Tensor | None
    """(places, q_heads, head_size) float32 workspace, rows * splits places or more; None with one split."""
    partial_lse: torch.Tensor | None
    """(places, q_heads, 2) float32: running maximum (base 2) and sum; None with one split."""
    shares: int = 0
    """Programs of a KV head that share all contexts equally, where a launcher offers that and a call allows it; the
    workspace then has at least rows + shares places. 0: contexts are cut one by one."""


@dataclass(frozen=True, slots=True)
class AttendCall:
    """One attention call over `tokens` query rows of `n_seqs` sequences."""

    q: torch.Tensor
    """(tokens, q_heads, head_size), model dtype; any strides with stride 1 on the last axis."""
    cache: CacheView
    page_table: torch.Tensor
    """(n_seqs, max_pages) int32, rows contiguous."""
    seq_lens: torch.Tensor
    """(n_seqs,) int32: tokens in the cache, the query's own included."""
    cu_q: torch.Tensor
    """(n_seqs + 1,) int32: query tokens of sequence s are rows cu_q[s] to cu_q[s + 1]."""
    out: torch.Tensor
    """(tokens, q_heads, head_size), model dtype, any strides with stride 1 on the last axis; every row is written.
    Rows that see no key become zeros, and so do rows behind cu_q[n_seqs], which belong to no sequence."""
    lse: torch.Tensor | None
    """(tokens, q_heads) float32, contiguous: natural log of the sum of exponentials; -inf for empty rows."""
    scale: float
    """Softmax scale, before any compensation for the rotation."""
    split: SplitPlan
    features: Features = Features()
    max_context: int = 0
    """Most tokens that a sequence has in the cache; 0 where no more is known than that its page table holds them."""


class WriteLauncher(Protocol):
    """Stores `slots.shape[0]` rows of k and v; slot < 0 is skipped, rows beyond the slots are left out."""

    def __call__(
        self, cache: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, config: Mapping[str, int]
    ) -> None:
        """`k`, `v`: (rows, kv_heads, head_size) by strides, last axis stride 1; `slots`: int32 or int64."""


class AttendLauncher(Protocol):
    """Decode or prefill. Both are right for every mix of query lengths; they differ in speed."""

    def splits(
        self,
        rows: int,
        kv_heads: int,
        group: int,
        max_context: int,
        compute_units: int | None,
        config: Mapping[str, int],
    ) -> int:
        """Return how many parts a context is cut into; 1 where the variant does not split."""

    def chunk(self, config: Mapping[str, int]) -> int:
        """Return the fixed split length that `batch_invariant=True` uses; 0 where the variant does not split."""

    def __call__(self, call: AttendCall, config: Mapping[str, int]) -> None:
        """Launch the attention, and the reduction where the context is split."""


@cache
def load(path: str) -> Any:
    """Return the launcher that `module:attribute` names, imported on the first call.

    Raises UsageError for another form or a missing attribute, DeviceUnavailable when the module cannot be imported
    (torch or Triton is not installed).
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise UsageError(
            wrong("launcher", required="module:attribute", found=repr(path), remedy="mend the variant that names it")
        )
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise DeviceUnavailable(
            wrong(
                f"launcher {path}",
                required=f"{module} to be importable",
                found=str(error),
                remedy="install the kernels' packages: pip install 'kvreg[kernels]'",
            )
        ) from error
    try:
        found = getattr(loaded, attribute)
    except AttributeError:
        raise UsageError(
            wrong(
                f"launcher {path}",
                required=f"an attribute {attribute} of {module}",
                found="none",
                remedy="mend the variant that names it, or reinstall the backend",
            )
        ) from None
    if "triton" not in sys.modules:
        return found
    from kvreg.runtime import direct  # which imports Triton

    return direct.launcher_of(found)
