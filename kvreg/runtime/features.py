"""Features of an attention call that go beyond what its selection was made for."""

from __future__ import annotations

from typing import Any

import torch

from kvreg.core.errors import CallError, FeatureNotSelected, wrong
from kvreg.runtime.geometry import Kind

_HANDED_ON = frozenset({"causal"})
"""Features for which AttendCall has a place; others cannot reach a kernel, whatever a request named."""


def check(kind: Kind, causal: Any, window: Any, softcap: Any, sinks: Any, alibi: Any, prefix_ranges: Any) -> None:
    """Raise FeatureNotSelected for a feature that the request did not name, or that no kernel is handed."""
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
                found=type(causal).__name__,
                remedy="leave it out for causal attention",
            )
        )
    for word, value in (
        ("window", window),
        ("softcap", softcap),
        ("sinks", sinks),
        ("alibi", alibi),
        ("prefix_ranges", prefix_ranges),
    ):
        if value is not None:
            asked.append(word)
    for word in asked:
        if word not in kind.features or word not in _HANDED_ON:
            named = tuple(dict.fromkeys((*kind.features, word)))
            raise FeatureNotSelected(
                wrong(
                    f"feature {word}",
                    required="a feature that the selection was made for and its kernels take",
                    found=f"features {', '.join(kind.features) or 'none'}",
                    remedy=f"ask kvreg.select({kind.device!r}, {kind.mode.value!r}, {kind.head_size}, "
                    f"features={named}), which says whether a kernel has it",
                )
            )
