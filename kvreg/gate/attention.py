"""Judging an attention result: shape, dtype, poison, non-finite values, and e and cosine of every row.

Per (token, query head), r the fp64 reference over the dequantized cache and p its softmax:

    e = |o - r| / max(|r|, sqrt(sum p^2 |v|^2), least)

The second term keeps an r that cancels from hiding behind its own smallness, the third says what the output's type can
tell apart (`closeness`). Where the first two are zero o must be zero.
Everything stays a tensor until one transfer at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvreg.core.requests import Accuracy
from kvreg.gate import limits
from kvreg.gate.poison import poisoned
from kvreg.gate.reports import Failure, GateReport, SequenceResult, place
from kvreg.oracle import Reference
from kvreg.testing import Label, closeness


def row_errors(out: torch.Tensor, reference: Reference) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (e, cosine), each (tokens, q_heads) float64; see `closeness.row_errors`."""
    return closeness.row_errors(out, reference.out, reference.spread)


def lse_errors(lse: torch.Tensor, reference: Reference) -> torch.Tensor:
    """Return |lse - reference| (tokens, q_heads) float64; 0 where both are -inf, inf where one is not finite."""
    found, due = lse.to(torch.float64), reference.lse
    error = torch.where(found == due, 0.0, (found - due).abs())
    return torch.where(due.isnan() & ~found.isfinite(), 0.0, error).nan_to_num_(nan=float("inf"), posinf=float("inf"))


def _by_sequence(values: torch.Tensor, owner: torch.Tensor, n: int, start: float, reduce: str) -> torch.Tensor:
    """Reduce (tokens, q_heads) to (n,) float64."""
    rows = values.to(torch.float64).flatten(1)
    per_token = {"amax": torch.amax, "amin": torch.amin, "sum": torch.sum}[reduce](rows, 1)
    into = torch.full((n,), start, dtype=torch.float64, device=values.device)
    return into.scatter_reduce_(0, owner, per_token, reduce)


def check_attention(
    out: torch.Tensor,
    reference: Reference,
    q_lens: Sequence[int],
    *,
    dtype: torch.dtype,
    lse: torch.Tensor | None = None,
    labels: Sequence[Label] = (),
    accuracy: Accuracy = "exact",
    quantization_error: float | None = None,
) -> GateReport:
    """Judge `out` (tokens, q_heads, head_size) and, where given, `lse` (tokens, q_heads) against the reference.

    `q_lens`: query rows of each sequence, in order; rows beyond them belong to no sequence and must be zeros.
    `labels`: one a sequence; without them the limit is the one for N(0,1). An out of the wrong shape or dtype is
    reported and not compared.
    """
    shape = tuple(reference.out.shape)
    failures = []
    if tuple(out.shape) != shape:
        failures.append(Failure("shape", "output", str(shape), str(tuple(out.shape))))
    if out.dtype != dtype:
        failures.append(Failure("dtype", "output", str(dtype), str(out.dtype)))
    if lse is not None and tuple(lse.shape) != shape[:2]:
        failures.append(Failure("shape", "lse", str(shape[:2]), str(tuple(lse.shape))))
    if failures:
        return GateReport(tuple(failures), ())

    n, device = len(q_lens), out.device
    counts = torch.tensor([*q_lens, shape[0] - sum(q_lens)], dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(n + 1), counts).to(device)
    e, cosine = row_errors(out, reference)
    left = poisoned(out) if out.dtype in (torch.bfloat16, torch.float16, torch.float32) else torch.zeros_like(out)
    broken = ~out.isfinite() & ~left & reference.out.isfinite()
    nothing = torch.maximum(torch.linalg.vector_norm(reference.out, dim=-1), reference.spread) == 0
    columns = [
        _by_sequence(e, owner, n + 1, 0.0, "amax"),
        _by_sequence(cosine, owner, n + 1, 1.0, "amin"),
        _by_sequence(left, owner, n + 1, 0.0, "sum"),
        _by_sequence(broken, owner, n + 1, 0.0, "sum"),
        _by_sequence((out != 0) & nothing[..., None], owner, n + 1, 0.0, "sum"),
    ]
    if lse is not None:
        columns.append(_by_sequence(lse_errors(lse, reference), owner, n + 1, 0.0, "amax"))

    rows = []
    for index, (worst, least, unwritten, nonfinite, nonzero, *rest) in enumerate(torch.stack(columns, 1).tolist()):
        label = labels[index] if index < min(n, len(labels)) else None
        limit = limits.rel_error(accuracy, label.input if label else "normal", quantization_error)
        where = place(index, label) if index < n else "rows of no sequence"
        found = (
            (unwritten > 0, "poison", "every element written", f"{unwritten:.0f} never written"),
            (nonfinite > 0, "finite", "finite values", f"{nonfinite:.0f} nan or infinite"),
            (nonzero > 0, "zero", "exact zeros, no key is seen", f"{nonzero:.0f} other values"),
            (worst > limit, "rel_error", f"at most {limit:.3g}", f"{worst:.3g}"),
            (least < limits.COSINE.value, "cosine", f"at least {limits.COSINE.value}", f"{least:.6f}"),
            (
                any(x > limits.LSE.value * limit for x in rest),
                "lse",
                f"within {limits.LSE.value * limit:.3g}",
                f"off by {max(rest, default=0.0):.3g}",
            ),
        )
        failures += [Failure(check, where, required, seen) for bad, check, required, seen in found if bad]
        if index < n:
            rows.append(SequenceResult(index, worst, least, rest[0] if rest else None, label))
    return GateReport(tuple(failures), tuple(rows))
