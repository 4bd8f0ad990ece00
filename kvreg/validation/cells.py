"""The work list of a validation: one cell is one variant on one shape, all its sequences in one batch and one launch.

A cell packs contexts x inputs x seeds as sequences of a single batch, so that a card needs a fraction of a second for
it. Cells that read the same rows stand next to each other, so that a worker computes their reference once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kvreg.core import coverage
from kvreg.core.layouts import LayoutId, default, known
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Variant
from kvreg.testing import WINDOWS
from kvreg.testing.features import words_of

HEAD_SIZES = coverage.HEAD_SIZES
"""Head sizes validated when none is named."""

GROUPS = (1, 4, 7, 8)
WHOLE_MODES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
WHOLE_HEADS = (64, 80, 96, 112, 128, 160, 192, 256)
"""Where every group meets every kind of batch and layout; elsewhere the groups of BRIEF_GROUPS, and each other layout
once. The portable kernels of 8 bits are that of `none`: groups, kinds and layouts are the same code in all of them. Of
kvreg_cuda.decode_8bit the interpreter tries widths, and groups up to 16 (tests/kernels)."""
BRIEF_GROUPS = (1, 4)
INPUTS = ("normal", "q4", "channel30", "one_sided")
CONTEXTS = (1, 17, 64, 1024, 8192)
SHORT_CONTEXTS = (1, 17, 64)

SEEDS_IN_LONG = 200
"""Sequences of the long form's batches, a seed each."""
LONG_CONTEXT = 1024
"""Tokens of each of those sequences: several tiles and splits, and 200 of them still fit any card."""

KINDS = {Op.WRITE: ("write",), Op.DECODE: ("decode", "mixed"), Op.PREFILL: ("prefill", "mixed")}
"""Batches that a variant of each op must be right for: launchers take every mix of query lengths."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch for one variant. Everything in it is plain, so that it travels to a worker and into the journal."""

    variant: str
    op: str
    mode: str
    head_size: int
    kind: str
    """decode, prefill or mixed; `write` for a write."""
    group: int
    kv_heads: int
    layout: str
    dtype: str
    page: int
    contexts: tuple[int, ...]
    inputs: tuple[str, ...]
    seeds: tuple[int, ...]
    features: tuple[str, ...] = ("causal",)
    window: int = WINDOWS[0]

    @property
    def covered(self) -> tuple[str, ...]:
        """Feature words that the cell shows to work: decode of several query rows a sequence is a word too."""
        split = self.op == Op.DECODE and self.kind == "mixed"
        return (*words_of(self.features), *(("multi_query_split",) if split else ()))

    @property
    def sequences(self) -> int:
        """Sequences that are judged."""
        return len(self.contexts) * len(self.inputs) * len(self.seeds)

    @property
    def thorough(self) -> bool:
        """Whether every way to launch is tried, and not only the planned one: each is a compilation of seconds.

        The ways differ in how a context is split and whether the lse is wanted; no other layout, dtype, page or
        feature, and no wide group, takes part in that.
        """
        usual = (self.layout, self.dtype, self.page) == (str(default(Mode(self.mode))), "bf16", 16)
        return usual and self.group <= max(GROUPS) and self.features == ("causal",)

    @property
    def rows(self) -> str:
        """What two cells share that read the same stored rows with the same queries."""
        shared = (self.mode, self.head_size, self.kind, self.group, self.kv_heads, self.dtype, self.page)
        return json.dumps([*shared, self.contexts, self.inputs, self.seeds, self.features, self.window])

    def to_json(self) -> dict[str, Any]:
        """Return the cell as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Cell:
        """Read what `to_json` gave."""
        values: dict[str, Any] = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        for name, value in values.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def __str__(self) -> str:
        extra = "" if (self.dtype, self.page) == ("bf16", 16) else f" {self.dtype} page {self.page}"
        group = "" if self.kind == "write" else f" group {self.group}"
        seeds = f" {len(self.seeds)} seeds" if len(self.seeds) >= SEEDS_IN_LONG else ""
        asked = "" if self.features == ("causal",) else f" {'+'.join(self.features)}"
        wide = f" {self.window}" if "window" in self.features else ""
        return f"{self.variant} d{self.head_size} {self.kind}{group} {self.layout}{extra}{seeds}{asked}{wide}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A shape away from the main grid that select accepts too, tried in one cell of each variant at SPOT_HEADS."""

    dtype: str = "bf16"
    page: int = 16
    group: int = 4
    contexts: tuple[int, ...] = CONTEXTS
    seeds: int | None = None
    """None takes the profile's."""


FEATURES: tuple[tuple[str, ...], ...] = (
    ("non_causal",),
    ("per_sequence_causal",),
    ("window",),
    ("non_causal", "window"),
    ("softcap",),
    ("sinks",),
    ("alibi",),
    ("prefix_ranges",),
    ("window", "softcap", "sinks", "alibi", "prefix_ranges"),
)
"""Each feature alone, the two readings of a window, and all that can stand together."""
FEATURES_OF = {
    64: FEATURES,
    96: FEATURES,
    128: FEATURES,
    256: (("window",), ("softcap",), ("sinks",), ("prefix_ranges",)),
    512: (("window",),),
}
"""Head sizes and the features tried there: everything at the three commonest, what models of the others ask for."""
OWN_FEATURES: tuple[tuple[str, ...], ...] = (
    ("non_causal", "softcap", "alibi"),
    ("per_sequence_causal", "softcap", "alibi"),
)
"""What equal shares take beside causal attention. They want batches of one query row a sequence, which those of the
other features are not, and only variants of one platform have them; tried where all FEATURES are."""
FEATURE_CONTEXTS = (17, 1024)


@dataclass(frozen=True, slots=True)
class Profile:
    """How much is tried. The device profile is DESIGN's; the others are cut for machines without a card."""

    contexts: tuple[int, ...] = CONTEXTS
    inputs: tuple[str, ...] = INPUTS
    seeds: int = 3
    groups: tuple[int, ...] = GROUPS
    default_layout_only: bool = False
    """Else every layout that the variant declares."""
    spots: tuple[Spot, ...] = ()
    many_seeds: bool = False
    """Adds the batches of 200 seeds."""
    features: bool = False
    """Adds the cells of FEATURES_OF."""
    every_feature: bool = False
    """Adds the cells of FEATURES at each head size instead."""
    dtype: str = "bf16"

    def with_seeds(self, seeds: int) -> Profile:
        """Return the profile with another number of seeds."""
        return replace(self, seeds=seeds)

    def with_every_feature(self) -> Profile:
        """Return the profile with every feature tried at each head size."""
        return replace(self, every_feature=True)

    def features_at(self, head_size: int) -> tuple[tuple[str, ...], ...]:
        """Return the sets of feature words that are tried at a head size, beside causal attention."""
        if self.every_feature:
            return FEATURES
        return FEATURES_OF.get(head_size, ()) if self.features else ()


SPOTS = (
    Spot(dtype="fp16"),
    Spot(page=528),
    Spot(group=24, contexts=(*SHORT_CONTEXTS, 1024)),
    Spot(group=71, contexts=(*SHORT_CONTEXTS, 1024)),
)
"""fp16; the largest page of the hybrid models that is no power of two; the widest groups of models in use."""
OWN_SPOTS = (Spot(group=2), Spot(group=12), Spot(group=16))
"""Groups that only variants of one platform take another way than those of GROUPS: kvreg_cuda.decode_int4 has subsets
of keys for every power of two up to 4, and other rows above 8."""
SPOT_HEADS = (96, 256)
"""A padded width and a whole one: dtype, page and group meet the head size nowhere but in the padding."""

_CPU_CONTEXTS = (*SHORT_CONTEXTS, 1024)
_CPU_SPOTS = (*(replace(spot, contexts=_CPU_CONTEXTS, seeds=1) for spot in SPOTS), Spot(contexts=(8192,), seeds=1))

PROFILES = {
    "device": Profile(spots=SPOTS, features=True),
    "device-long": Profile(spots=SPOTS, many_seeds=True, features=True),
    "cpu": Profile(contexts=_CPU_CONTEXTS, spots=_CPU_SPOTS, features=True),
    "cpu-long": Profile(spots=SPOTS, many_seeds=True, features=True),
    "interpreter": Profile(contexts=SHORT_CONTEXTS, seeds=1, groups=(1, 4), dtype="fp16"),
    "interpreter-cross": Profile(
        contexts=(*SHORT_CONTEXTS, 300),
        inputs=("normal", "channel30"),
        seeds=2,
        groups=(1, 4),
        default_layout_only=True,
        dtype="fp16",
    ),
    "interpreter-long": Profile(groups=(1, 4), dtype="fp16"),
    "smoke": Profile(contexts=SHORT_CONTEXTS, inputs=("normal", "channel30"), seeds=1, groups=(4,)),
}
"""`cpu` tries 8192 tokens in one cell a variant only, and `interpreter` is the form that fits a test run: both take
seconds for what a card does at once. `interpreter-cross` is what a cross build rests on: two seeds, several splits,
and the layout that is compiled. The interpreter computes in fp32 and gets fp16 rows: it truncates bf16 where it
stores it, which alone takes 7e-3 of the 1e-2 that hard inputs may be off."""


def kv_heads_of(group: int, head_size: int) -> int:
    """Return the KV heads of a cell: two show a wrong head, one keeps wide groups of large heads small."""
    return 1 if group > 8 or (group >= 7 and head_size > 128) else 2


def work_list(variants: Sequence[Variant], head_sizes: Sequence[int], profile: Profile) -> list[Cell]:
    """Return every cell of `profile` that the variants' constraints allow, those with the same rows together."""
    cells = [
        cell for variant in variants for head_size in head_sizes for cell in _of_variant(variant, head_size, profile)
    ]
    return sorted(cells, key=lambda cell: (cell.mode, cell.head_size, cell.kind == "write", cell.rows, cell.layout))


def _of_variant(variant: Variant, head_size: int, profile: Profile) -> Iterator[Cell]:
    limits = variant.constraints
    if not limits.takes_head_size(head_size):
        return
    named = (str(default(variant.mode)),) if profile.default_layout_only else known(variant.mode)
    layouts = [name for name in named if name in limits.layouts]
    seeds = tuple(range(profile.seeds))

    def cell(kind: str, group: int, layout: str, **others: Any) -> Cell:
        values: dict[str, Any] = {"dtype": profile.dtype, "page": 16, "contexts": profile.contexts}
        values |= {"inputs": profile.inputs, "seeds": seeds, **others}
        if kind == "write":  # a write sees no query, but its KV heads must be several
            group = 1
        heads = kv_heads_of(group, head_size)
        return Cell(
            str(variant.id),
            variant.op,
            variant.mode,
            head_size,
            kind,
            group,
            heads,
            str(LayoutId.parse(layout)),
            **values,
        )

    kinds = KINDS[variant.op]
    whole = variant.mode in WHOLE_MODES and head_size in WHOLE_HEADS
    groups = (1,) if variant.op is Op.WRITE else tuple(g for g in profile.groups if whole or g in BRIEF_GROUPS)
    for kind in kinds:
        for group in groups:
            if group <= limits.group_max:
                usual = whole or (group == groups[-1] and kind == kinds[0])
                yield from (cell(kind, group, layout) for layout in layouts if usual or layout == layouts[0])
    if not layouts:
        return
    own = OWN_SPOTS if profile.spots and variant.needs_card else ()
    for spot in (*profile.spots, *own) if head_size in SPOT_HEADS else ():
        if spot.dtype not in limits.dtypes or spot.group > limits.group_max:
            continue
        if not limits.page_min <= spot.page <= limits.page_max:
            continue
        if spot.group != 4 and (variant.op is Op.WRITE or not whole):
            continue  # groups are nothing to a write
        chosen = seeds if spot.seeds is None else tuple(range(spot.seeds))
        shape: dict[str, Any] = {"dtype": spot.dtype, "page": spot.page, "contexts": spot.contexts, "seeds": chosen}
        yield cell(kinds[0], spot.group, layouts[0], **shape)
    if variant.op is not Op.WRITE:
        tried = profile.features_at(head_size)
        shared = OWN_FEATURES if variant.needs_card and tried == FEATURES else ()
        for kind, features in (*((kinds[-1], each) for each in tried), *((kinds[0], each) for each in shared)):
            if not {*words_of(features)} <= {*limits.features}:
                continue
            for window in WINDOWS if features == ("window",) else WINDOWS[:1]:
                yield cell(
                    kind,
                    4,
                    layouts[0],
                    contexts=FEATURE_CONTEXTS,
                    inputs=("normal",),
                    features=features,
                    window=window,
                )
    if profile.many_seeds:
        many = {"contexts": (LONG_CONTEXT,), "inputs": ("normal",), "seeds": tuple(range(SEEDS_IN_LONG))}
        yield from (cell(kinds[0], group, layouts[0], **many) for group in groups if group in (1, 4))


def many_seeds_only(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of 200 seeds."""
    return [cell for cell in cells if len(cell.seeds) >= SEEDS_IN_LONG]
