"""Features of an attention call: what the selection was made for, what each argument must be, what kernels are handed.

A feature that the selection's request does not name is refused here, since no kernel was chosen for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from kvreg.core.errors import CallError, FeatureNotSelected, WrongDtype, WrongShape, shown, wrong
from kvreg.core.scalars import FLOAT32, real
from kvreg.runtime import checks, tensors
from kvreg.runtime.geometry import Kind
from kvreg.runtime.launchers import Features

_PLAIN = Features()

_WIDEST_WINDOW = 1 << 30
"""Keys of the widest window that is handed on: position plus window stays an int32, and no context is as long."""


def check(
    kind: Kind,
    n_seqs: int,
    device: Any,
    causal: Any,
    window: Any,
    softcap: Any,
    sinks: Any,
    alibi: Any,
    prefix_ranges: Any,
) -> None:
    """Raise unless each feature was selected and each argument is what its kernel expects.

    `n_seqs`: sequences of the call; `device`: where the cache lies. Raises FeatureNotSelected for a feature that the
    request did not name, WrongShape, WrongDtype, WrongDevice or CallError for an argument.
    """
    plain = window is None and softcap is None and sinks is None and alibi is None and prefix_ranges is None
    if causal is True and plain and "causal" in kind.features:
        return  # what every layer of most models asks in every step
    for word in _asked(causal, window, softcap, sinks, alibi, prefix_ranges):
        if word not in kind.features:
            named = tuple(dict.fromkeys((*kind.features, word)))
            raise FeatureNotSelected(
                wrong(
                    f"feature {word}",
                    required="a feature that the selection was made for",
                    found=f"features {', '.join(kind.features) or 'none'}",
                    remedy=f"ask kvreg.select({kind.device!r}, {kind.mode.value!r}, {kind.head_size}, "
                    f"features={named}), which says whether a kernel has it",
                )
            )
    if not isinstance(causal, bool):
        _check_causal(causal, n_seqs, device)
    if window is not None:
        _check_window(window)
    if softcap is not None:
        _check_softcap(softcap)
    for name, value in (("sinks", sinks), ("alibi", alibi)):
        if value is not None:
            _check_heads(name, value, kind.q_heads, device)
    if prefix_ranges is not None:
        _check_ranges(prefix_ranges, n_seqs, device)


def mask(causal: bool | Sequence[bool] | torch.Tensor, device: Any) -> bool | torch.Tensor:
    """Return `causal` as kernels take it: one bool, or (n_seqs,) torch.bool on `device`.

    A sequence of bools is laid down run by run: copying it from the host would make the host wait, and a captured
    graph could not hold it.
    """
    if isinstance(causal, (bool, torch.Tensor)):
        return causal
    laid = torch.zeros(len(causal), dtype=torch.bool, device=device)
    first = 0
    for value, run in groupby(causal):
        end = first + len(list(run))
        if value:
            laid[first:end].fill_(True)
        first = end
    return laid


def of(
    causal: bool | torch.Tensor,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    alibi: torch.Tensor | None,
    prefix_ranges: torch.Tensor | None,
) -> Features:
    """Return checked arguments; no ranges at all are the same as None."""
    if prefix_ranges is not None and prefix_ranges.numel() == 0:
        prefix_ranges = None
    if causal is True and window is None and softcap is None and sinks is None and alibi is None:
        return _PLAIN if prefix_ranges is None else Features(prefix_ranges=prefix_ranges)
    window = None if window is None else min(window, _WIDEST_WINDOW)
    return Features(causal, window, softcap, sinks, alibi, prefix_ranges)


def within_sequences(features: Features, seq_lens: torch.Tensor) -> Features:
    """Return features as kernels are handed them: ranges cut off at `seq_lens`, (n_seqs,) int32.

    Kernels count rows of no sequence on from the last one's end, and a longer range would hold them.
    """
    if features.prefix_ranges is None:
        return features
    return replace(features, prefix_ranges=torch.minimum(features.prefix_ranges, seq_lens[:, None, None]))


def _asked(causal: Any, window: Any, softcap: Any, sinks: Any, alibi: Any, prefix_ranges: Any) -> list[str]:
    """Return the feature words that a call's arguments stand for."""
    if causal is True:
        asked = ["causal"]
    elif causal is False:
        asked = ["non_causal"]
    elif isinstance(causal, (torch.Tensor, list, tuple)):
        asked = ["per_sequence_causal"]
    else:
        raise CallError(
            wrong(
                "causal",
                required="True, False, or one bool for each sequence",
                found=f"{shown(causal)} ({type(causal).__name__})",
                remedy="leave it out for causal attention",
            )
        )
    given = {"window": window, "softcap": softcap, "sinks": sinks, "alibi": alibi, "prefix_ranges": prefix_ranges}
    return asked + [word for word, value in given.items() if value is not None]


def _check_causal(causal: Any, n_seqs: int, device: Any) -> None:
    if isinstance(causal, torch.Tensor):
        tensors.indexes("causal", causal, device, (torch.bool,))
    else:
        strange = [value for value in causal if not isinstance(value, bool)]
        if strange:
            raise CallError(
                wrong(
                    "causal",
                    required="bools only, one for each sequence",
                    found=f"{strange[0]!r} ({type(strange[0]).__name__})",
                    remedy="pass True or False for each, or a tensor of torch.bool",
                )
            )
    if len(causal) != n_seqs:
        raise WrongShape(
            wrong(
                "causal",
                required=f"{n_seqs} entries, one for each sequence",
                found=len(causal),
                remedy="pass one bool for each entry of seq_lens",
            )
        )


def _check_window(window: Any) -> None:
    keys = checks.host_count("window", window, "the number of keys that a query sees, its own included; None for all")
    if not 1 <= keys < 1 << 31:
        raise CallError(
            wrong(
                "window",
                required="1 to 2147483647 keys, the query's own included",
                found=window,
                remedy="pass None for no window",
            )
        )


def _check_softcap(softcap: Any) -> None:
    cap = real(softcap)
    if cap is None:
        raise CallError(
            wrong(
                "softcap",
                required="a number on the host",
                found=type(softcap).__name__,
                remedy="pass a float, or None for no cap",
            )
        )
    if not FLOAT32[0] <= cap <= FLOAT32[1]:
        raise CallError(
            wrong(
                "softcap",
                required="a finite number above 0, as float32 holds it",
                found=shown(softcap),
                remedy="pass None for no cap",
            )
        )


def _check_heads(name: str, value: Any, q_heads: int, device: Any) -> None:
    """Raise unless `value` has one adjacent float32 for each query head."""
    tensors.indexes(name, value, device, (torch.float32,))
    if value.shape[0] != q_heads:
        raise WrongShape(
            wrong(
                name,
                required=f"{q_heads} entries, one for each query head",
                found=value.shape[0],
                remedy="pass one number for each head of q, or select for these head counts",
            )
        )


def _check_ranges(value: Any, n_seqs: int, device: Any) -> None:
    name = "prefix_ranges"
    tensors.placed(name, value, device)
    if value.dtype != torch.int32:
        raise WrongDtype(
            wrong(
                name,
                required=torch.int32,
                found=value.dtype,
                remedy="convert it with prefix_ranges.to(torch.int32)",
            )
        )
    if value.dim() != 3 or value.shape[0] != n_seqs or value.shape[2] != 2:
        raise WrongShape(
            wrong(
                name,
                required=f"shape ({n_seqs}, ranges, 2), a begin and an end for each range of each sequence",
                found=tuple(value.shape),
                remedy="pad sequences of fewer ranges with begin = end = 0",
            )
        )
    if not value.is_contiguous():
        raise WrongShape(
            wrong(
                name,
                required="a contiguous tensor",
                found=f"strides {value.stride()}",
                remedy="pass prefix_ranges.contiguous()",
            )
        )
