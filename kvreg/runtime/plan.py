"""plan: how a step's batch is cut, and the workspace for it; made once a step and shared by all layers alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import Kind, Step
from kvreg.runtime.launchers import SplitPlan, load
from kvreg.runtime.plan_checks import plan_call

ANY_CONTEXT = 1 << 30
"""A context that no split is too short for: a launcher then says how many programs fill the card."""

ALIKE = 0.8
"""From this share of n_seqs * max_context on lengths count as alike: even splits then lose a fifth at most."""

STARTED_TOKENS = 512
"""What programs cost before their first tile, in tokens that a compute unit's programs read together in that time.

Measured on an H200: of 8 programs a unit (cuda-int4-decode, clocks read in the kernel) each takes 1.6 us until it
knows its keys, where one without keys leaves, and 2 to 5 us more, at 2.2 us for each 64 tokens; of 2 programs a unit
(cuda-int8-decode) parts of 6144 tokens were faster than shorter ones. Most parts of an uneven batch are empty."""

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
    total_context: int | None = None,
    batch_invariant: bool = False,
) -> Plan:
    """Return how batches shaped like this one are cut, with the workspace that attend needs.

    Reads the shapes of `cu_q` (n_seqs + 1,) and `seq_lens` (n_seqs,), both int32 on the cache's device, never their
    values: nothing waits for the device, and a plan made once serves a captured graph for every step that keeps
    `n_seqs` and stays within `max_context` tokens a sequence. Layers whose caches are of one kind (mode, layout, head
    counts, page, dtype) share it, one call at a time: the workspace is one.

    `total_context`: tokens of all sequences together, as far as the host knows, at most n_seqs * max_context. It
    changes how the work is shared: without it the sequences count as equally long, and one long sequence among short
    ones is read by few programs. With it such a batch is read in equal shares where decode offers them (int4 and 8
    bits on NVIDIA cards): every program takes as many tokens, of however many sequences, with the variant's default
    parameters, since those of the tuner were judged on other batches. Elsewhere, and in calls with a window, sinks,
    prefix ranges or more rows than sequences, it is cut in parts of one length.

    `batch_invariant` cuts contexts in parts of a fixed length and launches with the variants' default parameters, so
    that a sequence's output does not depend, bit for bit, on the other sequences of its batch, among batches that go
    to the same op: attend takes decode for at most one query row a sequence (rows <= n_seqs), else prefill. A
    selection with feature multi_query_split, for the verification of drafts, takes decode up to rows <= 8 * n_seqs;
    contexts are then cut as for one row a sequence, since the rows of a sequence read the same keys.

    Raises CallError, WrongShape, WrongDtype or WrongDevice.
    """
    n_seqs, max_context, total_context = plan_call(cache, cu_q, seq_lens, max_context, total_context, batch_invariant)
    kind = cache.kind
    launcher = load(kind.decode.launcher)
    total = n_seqs * max_context if total_context is None or batch_invariant else total_context
    unlike = total < ALIKE * n_seqs * max_context
    shared = unlike and hasattr(launcher, "shares")
    config = config_of(kind.decode, default=batch_invariant or shared)
    group = kind.q_heads // kind.kv_heads
    chunk = launcher.chunk(config) if batch_invariant else 0
    if unlike:
        programs = launcher.splits(1, 1, group, ANY_CONTEXT, kind.compute_units, config)
        unit = launcher.chunk(kind.decode.default_config)
        started = STARTED_TOKENS * (kind.compute_units or 1) / programs
        chunk = part_length(n_seqs * max_context * kind.kv_heads, started, programs, unit)
    if chunk:
        splits = -(-max_context // chunk)
    elif batch_invariant:
        splits = 1
    else:
        splits = launcher.splits(n_seqs, kind.kv_heads, group, max_context, kind.compute_units, config)
    shares = launcher.shares(kind.kv_heads, kind.compute_units, config) if shared else 0
    return Plan(kind, n_seqs, max_context, batch_invariant, _split(cache, n_seqs, splits, chunk, shares))


def part_length(room: int, started: float, programs: int, unit: int) -> int:
    """Return the tokens of a split for a batch of unlike lengths, a multiple of `unit`; 0 where nothing is split.

    `room`: n_seqs * max_context * kv_heads; `programs` fill the device, the start of one takes as long as `started`
    tokens. The last program to begin ends about half a part late, and each part of the room costs its start, whether a
    sequence is that long or not. In tokens that is part / 2 + started * room / programs / part, least at the root of
    twice the second factor.
    """
    if not unit or programs <= 1:
        return 0
    return max(1, round(math.sqrt(2 * started * room / programs) / unit)) * unit


def config_of(step: Step, *, default: bool) -> Mapping[str, int]:
    """Return the launch parameters of a step: what is selected, or the variant's own."""
    return step.default_config if default else step.config


def _split(cache: KVCache, n_seqs: int, splits: int, chunk: int, shares: int) -> SplitPlan:
    if splits <= 1:
        return SplitPlan(1, chunk, None, None)
    rows = n_seqs * cache.kind.decode_rows
    places = (max(rows * splits, rows + shares), cache.kind.q_heads)
    return SplitPlan(
        splits,
        chunk,
        torch.empty((*places, cache.kind.head_size), dtype=torch.float32, device=cache.device),
        torch.empty((*places, 2), dtype=torch.float32, device=cache.device),
        shares,
    )
