"""Drawn calls: one case is one batch, one write and one attention, with everything about them chosen at random.

A case follows from a seed and its number alone. Cases come in families of FAMILY that share what a kernel is compiled
for (mode, layout, head size, page, group, features), since on a card the compiler takes longer than a hundred cases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any

from kvreg.core import layouts
from kvreg.core.modes import Mode
from kvreg.testing import INPUTS, KINDS, Kind
from kvreg.testing.features import MASKINGS

FAMILY = 25
"""Consecutive cases that share a family."""

OTHER_FEATURES = ("window", "softcap", "sinks", "alibi", "prefix_ranges", "multi_query_split")
"""Features that go with every masking and with each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the shapes of a case may be."""

    head_size: int
    group: int
    kv_heads: int
    page: int
    context: int
    sequences: int
    dtypes: tuple[str, ...]


LIMITS = {
    "card": Limits(head_size=512, group=71, kv_heads=8, page=544, context=3000, sequences=12, dtypes=("bf16", "fp16")),
    "cpu": Limits(
        head_size=512, group=71, kv_heads=4, page=544, context=400, sequences=6, dtypes=("bf16", "fp16", "fp32")
    ),
    "interpreter": Limits(
        head_size=96, group=8, kv_heads=2, page=64, context=40, sequences=2, dtypes=("bf16", "fp16")
    ),
}
"""A card takes 3000 tokens in many splits; Triton's interpreter takes a second for a few tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    """One drawn call; plain values, so that it travels to a worker and into a command line."""

    mode: str
    layout: str
    head_size: int
    group: int
    kv_heads: int
    page: int
    dtype: str
    features: tuple[str, ...]
    kind: Kind
    contexts: tuple[int, ...]
    """Tokens of each sequence; 0 is an empty one."""
    input: str
    window: int
    """Counts where `features` has the word."""
    batch_invariant: bool
    strided: bool
    """Whether q, k and v lie inside wider tensors full of nan and 1e30."""
    narrow_slots: bool
    """Whether slots are int32."""
    stray: int
    """Query rows behind the last sequence, which belong to none."""
    seed: int
    total_known: bool
    """Whether the plan is told the tokens of all sequences together: unlike lengths are then cut, or shared, so."""
    preference: int
    """Which of several variants that fit is tried: counted round, the same in a family."""

    def to_text(self) -> str:
        """Return the case as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Case:
        """Read what `to_text` wrote; raises ValueError for a text that is no case."""
        try:
            record = json.loads(text)
            return cls.of({each.name: record[each.name] for each in fields(cls)})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"case: required the JSON of a case, found {text[:80]!r} ({error!r})") from error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Case:
        """Return a case of these values; lists become tuples."""
        plain: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
        return cls(**plain)

    @property
    def q_heads(self) -> int:
        """Query heads."""
        return self.group * self.kv_heads


def draw(seed: int, number: int, limits: Limits, modes: Sequence[str] = tuple(Mode)) -> Case:
    """Return case `number` of a seed, the same for ever for the same limits and modes."""
    shared, own = Random(f"{seed}:{number // FAMILY}"), Random(f"{seed}:{number}:own")
    page = 16 * shared.randint(1, limits.page // 16)
    masking = shared.choice(MASKINGS)
    others = tuple(word for word in OTHER_FEATURES if shared.random() < 0.3)
    mode = Mode(shared.choice(list(modes)))
    values = {
        "mode": str(mode),
        "layout": shared.choice(layouts.known(mode)),
        "head_size": _head_size(shared, limits.head_size),
        "group": min(shared.choice((1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 71)), limits.group),
        "kv_heads": shared.randint(1, limits.kv_heads),
        "page": page,
        "dtype": shared.choice(limits.dtypes),
        "features": (masking, *others),
        "kind": own.choice(KINDS),
        "contexts": tuple(_context(own, page, limits.context) for _ in range(own.randint(1, limits.sequences))),
        "input": own.choice(INPUTS),
        "window": own.choice((1, 2, own.randint(1, page), own.randint(1, 2 * limits.context))),
        "batch_invariant": own.random() < 0.3,
        "strided": own.random() < 0.3,
        "narrow_slots": own.random() < 0.3,
        "stray": own.choice((0, 0, 1, 3)),
        "seed": own.randrange(1 << 20),
        # These two are drawn last of all, so that the rest of a case stays what it was without them.
        "total_known": own.random() < 0.5,
        "preference": shared.randrange(12),
    }
    return Case.of(values)


def _head_size(random: Random, most: int) -> int:
    """Return a multiple of 8: one of the models' as often as any other."""
    common = [size for size in (64, 80, 96, 112, 128, 192, 256) if size <= most]
    return random.choice(common) if random.random() < 0.5 else 8 * random.randint(4, most // 8)


def _context(random: Random, page: int, most: int) -> int:
    """Return a length: none, short, next to a page's end, or anything."""
    near = max(0, page * random.randint(1, max(1, most // page)) + random.randint(-1, 1))
    return min(most, random.choice((0, 1, random.randint(2, 20), near, random.randint(1, most))))
