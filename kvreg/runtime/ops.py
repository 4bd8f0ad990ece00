"""The launches themselves, and the custom operators `kvreg::write` and `kvreg::attend` that stand for them.

An eager call goes straight to `launch_write` or `launch_attend`. A compiler cannot look into a launcher, so under
torch.compile the call becomes an operator over tensors and plain values; the cache travels as its buffer and the text
of its geometry, and its views are made anew over whatever memory the compiler hands in.
"""

from __future__ import annotations

import torch

from kvreg.runtime import values
from kvreg.runtime.geometry import Geometry, parse
from kvreg.runtime.launchers import AttendCall, CacheView, SplitPlan, load
from kvreg.runtime.plan import UNSPLIT, config_of


def launch_write(geometry: Geometry, view: CacheView, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Store the rows; shapes are checked already, slot values here where the host can see them."""
    if slots.shape[0] == 0:
        return
    kind = geometry.kind
    if slots.device.type == "cpu":
        values.check_slots(slots, geometry.pages * kind.page)
    load(kind.write.launcher)(view, k, v, slots, kind.write.config)


def launch_attend(geometry: Geometry, call: AttendCall, max_context: int, batch_invariant: bool) -> None:
    """Attend with decode for at most one query row a sequence, else with prefill, which takes no split.

    Both are right for every mix of query lengths; the rule needs host values only.
    """
    kind, tokens, n_seqs = geometry.kind, call.q.shape[0], call.seq_lens.shape[0]
    if tokens == 0:
        return
    if call.q.device.type == "cpu":
        values.check_batch(call.page_table, call.seq_lens, call.cu_q, tokens, geometry.pages, kind.page, max_context)
    if n_seqs == 0:
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(-torch.inf)
        return
    step = kind.decode if tokens <= n_seqs else kind.prefill
    load(step.launcher)(call, config_of(step, batch_invariant))


def split_for(q: torch.Tensor, seq_lens: torch.Tensor, split: SplitPlan) -> SplitPlan:
    """Return the plan's split for decode, none for prefill."""
    return split if q.shape[0] <= seq_lens.shape[0] else UNSPLIT


def _write(buffer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, spec: str) -> None:
    geometry = parse(spec)
    launch_write(geometry, geometry.view(buffer), k, v, slots)


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
    spec: str,
    splits: int,
    chunk: int,
    max_context: int,
    batch_invariant: bool,
    scale: float,
) -> None:
    geometry = parse(spec)
    split = split_for(q, seq_lens, SplitPlan(splits, chunk, partial_out, partial_lse))
    view = geometry.view(buffer)
    call = AttendCall(q, view, page_table, seq_lens, cu_q, out, lse, scale, split)
    launch_attend(geometry, call, max_context, batch_invariant)


def _changes_nothing_else(*arguments: object) -> None:
    """Stand for an operator while shapes are traced: both write into their arguments and return nothing."""


write = torch.library.custom_op(
    "kvreg::write",
    _write,
    mutates_args=("buffer",),
    schema="(Tensor(a!) buffer, Tensor k, Tensor v, Tensor slots, str spec) -> ()",
)
attend = torch.library.custom_op(
    "kvreg::attend",
    _attend,
    mutates_args=("out", "lse", "partial_out", "partial_lse"),
    schema=(
        "(Tensor q, Tensor buffer, Tensor page_table, Tensor seq_lens, Tensor cu_q, Tensor(a!) out, Tensor(b!)? lse, "
        "Tensor(c!)? partial_out, Tensor(d!)? partial_lse, str spec, SymInt splits, SymInt chunk, SymInt max_context, "
        "bool batch_invariant, float scale) -> ()"
    ),
)
write.register_fake(_changes_nothing_else)
attend.register_fake(_changes_nothing_else)
