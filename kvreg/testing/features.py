"""The parameters of attention features for a batch, drawn so that each feature changes the result.

A batch is built for feature words of a request; words that nothing is drawn for are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import torch

from kvreg.core.errors import UsageError, wrong
from kvreg.core.requests import FEATURES

MASKINGS = ("causal", "non_causal", "per_sequence_causal")
"""Words of which a request has one; `causal` where it names none."""
DRAWN = (*MASKINGS, "window", "softcap", "sinks", "alibi", "prefix_ranges", "multi_query_split")
"""Every word that a batch can be built for."""
WINDOWS = (5, 100)
"""Windows of the gate: within a tile and across several pages. A batch has the first one unless told otherwise."""
SOFTCAP = 5.0
RANGES = 3
"""Prefix ranges of a sequence, one of them empty."""


class FeatureFields(TypedDict):
    """The features among the arguments of `attend`, `kvreg.oracle.attention` and of `Features` in kvreg.runtime."""

    causal: bool | torch.Tensor
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None
    alibi: torch.Tensor | None
    prefix_ranges: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """What a batch's attention is asked for; has every attribute of `kvreg.runtime.launchers.Features`."""

    words: tuple[str, ...] = ("causal",)
    """The words of a request that asks for them, in the order of `kvreg.core.requests.FEATURES`."""
    causal: bool | torch.Tensor = True
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi: torch.Tensor | None = None
    prefix_ranges: torch.Tensor | None = None

    @property
    def word(self) -> str:
        """The words in one, `causal+window`, as labels have it."""
        return "+".join(self.words)

    def fields(self) -> FeatureFields:
        """Return the arguments that ask for these features: `Features(**batch.features.fields())`."""
        return {
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "alibi": self.alibi,
            "prefix_ranges": self.prefix_ranges,
        }

    def to(self, device: torch.device | str) -> FeatureValues:
        """Return the same values on another device."""
        moved = {name: x.to(device) for name, x in self.fields().items() if isinstance(x, torch.Tensor)}
        return replace(self, **moved)


CAUSAL = FeatureValues()
"""What a batch is asked for when nothing is said."""


def words_of(features: Sequence[str]) -> tuple[str, ...]:
    """Return feature words in the order of FEATURES, with `causal` where no masking is named.

    Raises UsageError for a word that nothing is drawn for and for two maskings.
    """
    maskings = [word for word in MASKINGS if word in features]
    strange = [word for word in features if word not in DRAWN]
    if strange or len(maskings) > 1:
        raise UsageError(
            wrong(
                "batch features",
                required=f"words of {', '.join(DRAWN)}, at most one of the first three",
                found=", ".join(strange or maskings),
                remedy="leave it out, or build a batch for each",
            )
        )
    named = set(features) | set(() if maskings else ("causal",))
    return tuple(word for word in FEATURES if word in named)


def draw(
    words: tuple[str, ...],
    *,
    contexts: Sequence[int],
    q_lens: Sequence[int],
    q_heads: int,
    window: int,
    seed: int,
    device: torch.device | str,
) -> FeatureValues:
    """Return the parameters of `words` for sequences of these contexts and query lengths, the same on every device."""
    generator = torch.Generator().manual_seed(seed * 7919 + 17)
    causal: bool | torch.Tensor = "non_causal" not in words
    if "per_sequence_causal" in words:
        causal = _alternating(contexts).to(device)
    sinks = torch.randn(q_heads, generator=generator) if "sinks" in words else None
    alibi = 2.0 ** -torch.arange(1, q_heads + 1, dtype=torch.float32) if "alibi" in words else None
    ranges = _ranges(contexts, q_lens, generator) if "prefix_ranges" in words else None
    return FeatureValues(
        words,
        causal,
        window if "window" in words else None,
        SOFTCAP if "softcap" in words else None,
        *(None if x is None else x.to(device) for x in (sinks, alibi, ranges)),
    )


def _alternating(contexts: Sequence[int]) -> torch.Tensor:
    """Return (n_seqs,) bool by turns for each length, so that a length has both whatever the order of sequences."""
    next_of: dict[int, bool] = {}
    turns = []
    for context in contexts:
        next_of[context] = not next_of.get(context, len(next_of) % 2 == 1)
        turns.append(next_of[context])
    return torch.tensor(turns, dtype=torch.bool)


def _ranges(contexts: Sequence[int], q_lens: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Return (n_seqs, RANGES, 2) int32.

    The first range lies anywhere; the second holds query rows, begins up to 7 keys before them and, in every other
    sequence, ends beyond the last key; the third has its end before its begin.
    """

    def below(limit: int) -> int:
        return int(torch.randint(max(limit, 1), (1,), generator=generator))

    rows = []
    for index, (context, queries) in enumerate(zip(contexts, q_lens, strict=True)):
        begin = below(context)
        first = max(context - queries, 0)
        ahead = max(first + below((context - first) // 2) - below(8), 0)
        beyond = context + 3 if index % 2 else max(context - below(3), ahead + 1)
        rows.append(((begin, begin + 1 + below(context - begin)), (ahead, beyond), (below(context) + 2, 1)))
    return torch.tensor(rows, dtype=torch.int32).view(len(rows), RANGES, 2)
