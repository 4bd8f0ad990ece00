"""What a call of kvreg.plan must keep, looked at before anything is made; of batches: kvreg.runtime.checks."""

from __future__ import annotations

from typing import Any

import torch

from kvreg.core.errors import WrongShape, wrong
from kvreg.runtime.checks import batch, flag, host_count, is_cache

MOST_TOKENS = 2**31 - 1
"""Of a sequence: the largest int32, which lengths and positions are."""

_PLAN_APART = wrong(
    "kvreg.plan",
    required="a call outside of what torch.compile compiles in one graph",
    found="one inside",
    remedy="make the plan once a step and pass it in; write and attend may be compiled",
)


def plan_call(
    cache: Any, cu_q: Any, seq_lens: Any, max_context: Any, total_context: Any, batch_invariant: Any
) -> tuple[int, int, int | None]:
    """Return the number of sequences, `max_context` and `total_context`; raise unless a plan can be made."""
    if torch.compiler.is_compiling():
        # With fullgraph torch raises, quoting the line; without it the call leaves the graph and is made as ever.
        torch._dynamo.graph_break(msg=_PLAN_APART)
    is_cache(cache)
    flag("batch_invariant", batch_invariant)
    n_seqs = batch(cu_q, seq_lens, cache.device)
    max_context = host_count("max_context", max_context, "the most tokens that a sequence may have")
    if total_context is not None:
        total_context = host_count("total_context", total_context, "the tokens of all sequences together, or None")
    if not 1 <= max_context <= MOST_TOKENS:
        raise WrongShape(
            wrong(
                "max_context",
                required=f"at least 1 token and at most {MOST_TOKENS}, as lengths are int32",
                found=max_context,
                remedy="pass the longest context",
            )
        )
    if total_context is not None and not 0 <= total_context <= n_seqs * max_context:
        raise WrongShape(
            wrong(
                "total_context",
                required=f"0 to {n_seqs * max_context} tokens: {n_seqs} sequences of at most {max_context}",
                found=total_context,
                remedy="pass the sum of seq_lens, or leave it out",
            )
        )
    return n_seqs, max_context, total_context
