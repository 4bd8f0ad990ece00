"""What to tune for: buckets of work by op, from a preset, a YAML file or one batch and context; shapes of a model.

    find("chat").buckets[Op.DECODE]                 # (b1-c4096, b8-c4096, b32-c8192)
    find("b1-c131072")                              # one step of that work; t8192: one write
    find("nightly.yaml")                            # a file of buckets, see `read`
    shapes_of(Path("Phi-3-mini"), find("chat"))     # the model's head sizes and groups, no longer than its context

The presets are choices of what people serve and no measurement. A larger bucket stands in for one that is missing, so
each preset names the largest work of its kind and a smaller one where other launch parameters can be expected to win.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core.asking import MASKS
from kvreg.core.buckets import Bucket, bucket, is_bucket
from kvreg.core.errors import BadFile, Refused, UsageError, wrong
from kvreg.core.near import suggestion
from kvreg.core.requests import FEATURES, Op

if TYPE_CHECKING:
    from kvreg.core.models import LayerGroup


@dataclass(frozen=True, slots=True)
class Workload:
    """Buckets of work, in the order in which they are to be tuned; an op that is not named has none."""

    name: str
    buckets: Mapping[Op, tuple[Bucket, ...]]

    def within(self, max_context: int | None) -> Workload:
        """Return the workload with every context cut to the bucket of `max_context`, the longest a model has."""
        if max_context is None:
            return self
        return Workload(self.name, {op: _within(op, buckets, max_context) for op, buckets in self.buckets.items()})


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of a model that ask for one thing, and the work to tune them for."""

    layers: tuple[int, ...]
    head_size: int
    q_heads: int
    kv_heads: int
    dtype: str
    """bf16 or fp16."""
    features: tuple[str, ...]
    workload: Workload


def single(batch: int, context: int) -> Workload:
    """Return the buckets of one step: decode and prefill of `batch` sequences of `context` tokens, and its write."""
    texts = {op: (str(bucket(op, batch, context)),) for op in Op}
    return _workload(f"{batch} x {context}", texts)


def find(word: str, also: Sequence[str] = ()) -> Workload:
    """Return the preset of a name, the work of one bucket, or the workload of a YAML file.

    `also`: further names that the caller knows, for the message. Raises UsageError, and BadFile as `read` does.
    """
    if word in PRESETS:
        return PRESETS[word]
    if is_bucket(word):
        stated = Bucket.parse(word)
        if stated.is_of(Op.WRITE):
            return _workload(word, {Op.WRITE: (word,)})
        return replace(single(stated.batch, stated.context), name=word)
    if word.endswith((".yaml", ".yml")) or os.path.exists(word):
        return read(Path(word))
    names = (*PRESETS, *also)
    message = wrong(
        "workload",
        required=f"one of {', '.join(names)}, a bucket such as b32-c8192 or t32, or a YAML file of buckets",
        found=repr(word),
        remedy=suggestion(word, names),
    )
    raise UsageError(message, candidates=names)


def read(path: Path) -> Workload:
    """Return the workload of a YAML file; a bucket that lookups never ask for counts as the one that holds it.

        schema: 1
        name: nightly
        decode: [b32-c8192, b1-c131072]     # sequences, tokens of each
        prefill: [b4-c4096]
        write: [t32, t8192]                 # tokens of one call

    Raises BadFile for anything else in it, or for no bucket at all.
    """
    from kvreg.core import yaml_files

    loaded = yaml_files.load(path)
    if not isinstance(loaded, dict):
        raise BadFile(_bad(path, "a mapping", type(loaded).__name__))
    unknown = [str(key) for key in loaded if key not in ("schema", "name", *Op)]
    if unknown:
        raise BadFile(_bad(path, f"schema, name, {', '.join(Op)}", f"{unknown[0]!r}"))
    if type(loaded.get("schema")) is not int or loaded["schema"] != 1:
        raise BadFile(_bad(path, "schema 1", f"{loaded.get('schema')!r}"))
    name = loaded.get("name", path.stem)
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise BadFile(_bad(path, "a name in printable characters", f"{name!r:.80}"))
    texts = {op: loaded[op] for op in Op if op in loaded}
    for op, listed in texts.items():
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise BadFile(_bad(path, f"a list of buckets as {op}", f"{listed!r:.80}"))
    if not any(texts.values()):
        raise BadFile(_bad(path, "at least one bucket", "none"))
    try:
        return _workload(name, texts)
    except UsageError as error:
        raise BadFile(f"{path}: {error.message}") from None


def shapes_of(folder: Path, workload: Workload, *, text_only: bool = False) -> tuple[Shape, ...]:
    """Return what a model's layers ask for, from its config.json; layers that no kernel can serve are left out.

    Raises BadFile for a folder without a readable config.json, Refused where no layer of the model can be served.
    """
    from kvreg.core.models import read_model

    model = read_model(folder, text_only=text_only)
    shapes = tuple(
        Shape(
            layers=group.layers,
            head_size=group.head_size,
            q_heads=group.q_heads,
            kv_heads=group.kv_heads,
            dtype=model.dtype or "bf16",
            features=_features(group),
            workload=workload.within(model.max_context),
        )
        for group in model.groups
        if group.refusal is None
    )
    if not shapes:
        reasons = [model.refusal, *(group.refusal for group in model.groups)]
        why = next((str(each) for each in reasons if each is not None), "it has no layer with a cache")
        raise Refused(f"{model.architecture}: {why}")
    return shapes


def _features(group: LayerGroup) -> tuple[str, ...]:
    """Return the group's words as a request states them: with a mask, in the order of all words."""
    words = set(group.features)
    if not words.intersection(MASKS):
        words.add("causal")
    return tuple(word for word in FEATURES if word in words)


def _workload(name: str, texts: Mapping[Op, Sequence[str]]) -> Workload:
    """Raises UsageError for a text that is no bucket of its op."""
    return Workload(name, {op: _buckets(op, listed) for op, listed in texts.items() if listed})


def _buckets(op: Op, texts: Iterable[str]) -> tuple[Bucket, ...]:
    found = []
    for text in texts:
        stated = Bucket.parse(text)
        if not stated.is_of(op):
            form = "tTOKENS" if op is Op.WRITE else "bBATCH-cCONTEXT"
            raise UsageError(wrong(f"{op} bucket", required=form, found=text, remedy="state its work so"))
        found.append(bucket(op, stated.batch, stated.context))
    return tuple(dict.fromkeys(found))


def _within(op: Op, buckets: tuple[Bucket, ...], max_context: int) -> tuple[Bucket, ...]:
    if op is Op.WRITE:
        return buckets
    longest = bucket(op, 1, max_context).context
    return tuple(dict.fromkeys(Bucket(each.batch, min(each.context, longest)) for each in buckets))


def _bad(path: Path, required: str, found: str) -> str:
    return wrong(str(path), required=required, found=found, remedy="correct the file (docs/tuned.md shows one)")


PRESETS: Mapping[str, Workload] = {
    name: _workload(name, texts)
    for name, texts in {
        # One user to a few dozen in conversation: one token each a step, prompts of a few thousand.
        "chat": {
            Op.WRITE: ("t1", "t8", "t32", "t2048"),
            Op.DECODE: ("b1-c4096", "b8-c4096", "b32-c8192"),
            Op.PREFILL: ("b1-c2048", "b4-c4096"),
        },
        # A few users with documents or code bases: few sequences, so each context is split over the whole card.
        "long-context": {
            Op.WRITE: ("t1", "t4", "t8192"),
            Op.DECODE: ("b1-c32768", "b1-c131072", "b4-c32768"),
            Op.PREFILL: ("b1-c8192",),
        },
        # Offline or at scale: many short sequences, prompts in chunks of 8192 tokens.
        "batch-serving": {
            Op.WRITE: ("t64", "t256", "t8192"),
            Op.DECODE: ("b64-c2048", "b128-c2048", "b256-c1024"),
            Op.PREFILL: ("b4-c2048", "b16-c512"),
        },
    }.items()
}
"""Preset -> its buckets."""
