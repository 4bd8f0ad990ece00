"""The launches themselves, and the custom operators `kvreg::write` and `kvreg::attend` that stand for them.

An eager call goes straight to `launch_write` or `launch_attend`. A compiler cannot look into a launcher, so under
torch.compile the call becomes an operator over tensors and plain values; the cache travels as its buffer and the text
of its geometry, and its views are made anew over whatever memory the compiler hands in.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from kvreg.runtime import features, values
from kvreg.runtime.geometry import Geometry, Kind, parse
from kvreg.runtime.launchers import AttendCall, CacheView, SplitPlan, load
from kvreg.runtime.overlaps import require_own_memory
from kvreg.runtime.plan import UNSPLIT, config_of
from kvreg.runtime.replay import Asked


def launch_write(
    geometry: Geometry,
    view: CacheView,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    asked: Asked | None = None,
) -> None:
    """Store the rows; shapes are checked already, slot values here where the host can see them."""
    if slots.shape[0] == 0:
        return
    kind = geometry.kind
    if slots.device.type == "cpu":
        values.check_slots(slots, geometry.pages * kind.page)
    launcher = load(kind.write.launcher)
    with _kept(launcher, asked):
        launcher(view, k, v, slots, kind.write.config)


def launch_attend(geometry: Geometry, call: AttendCall, batch_invariant: bool, asked: Asked | None = None) -> None:
    """Attend with decode for at most `kind.decode_rows` query rows a sequence, else with prefill, without a split.

    Both are right for every mix of query lengths; the rule needs host values only.
    """
    kind, tokens, n_seqs = geometry.kind, call.q.shape[0], call.seq_lens.shape[0]
    if tokens == 0:
        return
    if call.q.device.type == "cpu":
        values.check_batch(
            call.page_table, call.seq_lens, call.cu_q, tokens, geometry.pages, kind.page, call.max_context
        )
        values.check_features(call.features)
    if n_seqs == 0:
        with _writable(call.out):
            call.out.zero_()
        if call.lse is not None:
            sinks = call.features.sinks
            call.lse.copy_(sinks) if sinks is not None else call.lse.fill_(-torch.inf)
        return
    if call.features.prefix_ranges is not None:
        call = replace(call, features=features.within_sequences(call.features, call.seq_lens))
    step = kind.decode if _decodes(kind, tokens, n_seqs) else kind.prefill
    launcher = load(step.launcher)
    with _writable(call.out), _kept(launcher, asked, call.out, call.lse):
        launcher(call, config_of(step, default=batch_invariant or call.split.shares > 0))


def _kept(launcher: Any, asked: Asked | None, *made: torch.Tensor | None) -> AbstractContextManager[None]:
    """Return what keeps the launches of a call, where it is one to be kept and the launcher does nothing else."""
    return nullcontext() if asked is None or not getattr(launcher, "only_submits", False) else asked.recorded(*made)


def _writable(out: torch.Tensor) -> AbstractContextManager[Any]:
    """Return where `out` may be written: torch fills what was made under inference mode in that mode alone."""
    return torch.inference_mode() if out.is_inference() else nullcontext()


def _decodes(kind: Kind, tokens: int, n_seqs: int) -> bool:
    """Return whether a batch goes to decode; its workspace has room for as many rows."""
    return tokens <= kind.decode_rows * n_seqs


def split_for(kind: Kind, q: torch.Tensor, n_seqs: int, split: SplitPlan) -> SplitPlan:
    """Return the plan's split for decode, none for prefill."""
    return split if _decodes(kind, q.shape[0], n_seqs) else UNSPLIT


def _write(
    buffer: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    tensor_scales: torch.Tensor | None,
    spec: str,
) -> None:
    geometry = parse(spec)
    launch_write(geometry, geometry.view(buffer, tensor_scales), k, v, slots)


def _attend(
    q: torch.Tensor,
    buffer: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_q: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    partial_out: torch.Tensor | None,
    partial_lse: torch.Tensor | None,
    tensor_scales: torch.Tensor | None,
    causal_each: torch.Tensor | None,
    sinks: torch.Tensor | None,
    alibi: torch.Tensor | None,
    prefix_ranges: torch.Tensor | None,
    spec: str,
    splits: int,
    chunk: int,
    shares: int,
    max_context: int,
    batch_invariant: bool,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> None:
    """Attend; `causal_each`, where given, stands in the place of `causal`."""
    # Where tensors lie is known here at the earliest: while a compiler traces, they have no addresses.
    require_own_memory(out, q, buffer, (page_table, seq_lens, cu_q, causal_each, sinks, alibi, prefix_ranges))
    geometry = parse(spec)
    split = split_for(geometry.kind, q, seq_lens.shape[0], SplitPlan(splits, chunk, partial_out, partial_lse, shares))
    view = geometry.view(buffer, tensor_scales)
    masked = causal if causal_each is None else causal_each
    wanted = features.of(masked, window, softcap, sinks, alibi, prefix_ranges)
    call = AttendCall(q, view, page_table, seq_lens, cu_q, out, lse, scale, split, wanted, max_context)
    launch_attend(geometry, call, batch_invariant)


def _changes_nothing_else(*arguments: object) -> None:
    """Stand for an operator while shapes are traced: both write into their arguments and return nothing."""


write = torch.library.custom_op(
    "kvreg::write",
    _write,
    mutates_args=("buffer",),
    schema="(Tensor(a!) buffer, Tensor k, Tensor v, Tensor slots, Tensor? tensor_scales, str spec) -> ()",
)
attend = torch.library.custom_op(
    "kvreg::attend",
    _attend,
    mutates_args=("out", "lse", "partial_out", "partial_lse"),
    schema=(
        "(Tensor q, Tensor buffer, Tensor page_table, Tensor seq_lens, Tensor cu_q, Tensor(a!) out, Tensor(b!)? lse, "
        "Tensor(c!)? partial_out, Tensor(d!)? partial_lse, Tensor? tensor_scales, Tensor? causal_each, "
        "Tensor? sinks, Tensor? alibi, Tensor? prefix_ranges, str spec, SymInt splits, SymInt chunk, SymInt shares, "
        "SymInt max_context, bool batch_invariant, float scale, bool causal, int? window, float? softcap) -> ()"
    ),
)
write.register_fake(_changes_nothing_else)
attend.register_fake(_changes_nothing_else)
