"""plan: how a step's batch is cut, and the workspace for it; made once a step and shared by all layers alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kvreg.runtime import checks
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import Kind, Step
from kvreg.runtime.launchers import SplitPlan, load

UNSPLIT = SplitPlan(splits=1, chunk=0, partial_out=None, partial_lse=None)
"""What prefill runs with: its query blocks fill the card without cutting contexts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Valid for every cache of the same kind and every batch of `n_seqs` sequences up to `max_context` tokens."""

    kind: Kind
    n_seqs: int
    max_context: int
    """Most tokens that a sequence of the batch has in the cache."""
    batch_invariant: bool
    split: SplitPlan
    """For decode, with a workspace for `n_seqs` rows, or 8 times as many with multi_query_split; prefill is not
    split."""


def plan(
    cache: KVCache,
    cu_q: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_context: int,
    batch_invariant: bool = False,
) -> Plan:
    """Return how batches shaped like this one are cut, with the workspace that attend needs.

    Reads the shapes of `cu_q` (n_seqs + 1,) and `seq_lens` (n_seqs,), both int32 on the cache's device, never their
    values: nothing waits for the device, and a plan made once serves a captured graph for every step that keeps
    `n_seqs` and stays within `max_context` tokens a sequence. Layers whose caches are of one kind (mode, layout, head
    counts, page, dtype) share it, one call at a time: the workspace is one.

    `batch_invariant` cuts contexts in parts of a fixed length and launches with the variants' default parameters, so
    that a sequence's output does not depend, bit for bit, on the other sequences of its batch, among batches that go
    to the same op: attend takes decode for at most one query row a sequence (rows <= n_seqs), else prefill. A
    selection with feature multi_query_split, for the verification of drafts, takes decode up to rows <= 8 * n_seqs;
    contexts are then cut as for one row a sequence, since the rows of a sequence read the same keys.

    Raises CallError, WrongShape, WrongDtype or WrongDevice.
    """
    n_seqs = checks.plan_call(cache, cu_q, seq_lens, max_context)
    kind = cache.kind
    launcher = load(kind.decode.launcher)
    config = config_of(kind.decode, batch_invariant)
    group = kind.q_heads // kind.kv_heads
    chunk = launcher.chunk(config) if batch_invariant else 0
    if chunk:
        splits = -(-max_context // chunk)
    elif batch_invariant:
        splits = 1
    else:
        splits = launcher.splits(n_seqs, kind.kv_heads, group, max_context, kind.compute_units, config)
    return Plan(kind, n_seqs, max_context, batch_invariant, _split(cache, n_seqs, splits, chunk))


def config_of(step: Step, batch_invariant: bool) -> Mapping[str, int]:
    """Return the launch parameters of a step."""
    return step.default_config if batch_invariant else step.config


def _split(cache: KVCache, n_seqs: int, splits: int, chunk: int) -> SplitPlan:
    if splits <= 1:
        return SplitPlan(1, chunk, None, None)
    rows = (n_seqs * cache.kind.decode_rows, cache.kind.q_heads, splits)
    return SplitPlan(
        splits,
        chunk,
        torch.empty((*rows, cache.kind.head_size), dtype=torch.float32, device=cache.device),
        torch.empty((*rows, 2), dtype=torch.float32, device=cache.device),
    )
